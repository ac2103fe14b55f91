// The launch functions of every CUDA kernel, for the table. Host code only.
#pragma once

#include "ladder/ladder.h"
