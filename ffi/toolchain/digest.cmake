# Writes OUTPUT, a header that defines JAXGEMM_SOURCE_DIGEST: sha256 over a line for each file under SOURCE, its own
# sha256 and its name, in the order of names. jaxgemm/_runtime.py computes the same.
file(GLOB_RECURSE files RELATIVE ${SOURCE} ${SOURCE}/*)
list(FILTER files EXCLUDE REGEX "(^|/)__pycache__/")
list(SORT files COMPARE STRING)
set(lines "")
foreach(file IN LISTS files)
  file(SHA256 ${SOURCE}/${file} sum)
  string(APPEND lines "${sum} ${file}\n")
endforeach()
string(SHA256 digest "${lines}")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define JAXGEMM_SOURCE_DIGEST \"${digest}\"\n")
