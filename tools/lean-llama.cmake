# Read by CMake when llama-cpp-python is built; a plain -DLLAMA_BUILD_COMMON=OFF is overridden there.
set(LLAMA_BUILD_COMMON OFF)
