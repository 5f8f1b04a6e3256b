"""What edge and cloud must agree on: messages, shared noise, sampling, acceptance, commit, errors.

numpy and llguidance only: no torch, no llama_cpp, no sockets. Everything here is pure.
"""
