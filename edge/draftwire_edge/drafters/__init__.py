"""What can make guesses: a GGUF model through llama.cpp, or the text itself."""
