// The functions of every CUDA kernel that the table names. Host code only.
#pragma once

#include "direct/direct.h"
#include "gemv/gemv.h"
#include "ladder/ladder.h"
#include "simt/simt.h"
#include "sm80/sm80.h"
#include "sm90/sm90.h"
