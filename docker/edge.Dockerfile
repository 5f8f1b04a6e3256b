# The laptop's half: `draftwire` and its draft model. Build it from the top of the repository:
#
#     docker build -f docker/edge.Dockerfile -t draftwire-edge .
#     docker run --init -it -v draftwire-edge-models:/var/cache/draftwire draftwire-edge \
#         generate "Why is the sky blue?" --cloud gpu.example.org:50051

FROM python:3.11-slim AS build
# llama-cpp-python is compiled here. Without further flags the image runs on every machine of its kind
# (x86-64 with AVX2, or arm64); a little faster, but for this machine's processor only:
#   --build-arg LLAMA_FLAGS=-DGGML_NATIVE=ON
ARG LLAMA_FLAGS=""
# More options for pip.
ARG PIP_OPTIONS=""
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake ninja-build \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_CACHE_DIR=/var/cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
COPY tools/lean-llama.cmake tools/
# Compiled first and by itself: a change of our code does not touch this layer. The flags leave out what
# draftwire does not use, about two thirds of the compile time. pip's cache would hand out a wheel that
# was compiled with other flags, so it is off here.
RUN CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=/src/tools/lean-llama.cmake -DGGML_NATIVE=OFF $LLAMA_FLAGS" \
    pip install $PIP_OPTIONS -c constraints.txt --no-cache-dir llama-cpp-python
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY models models
COPY edge edge
COPY cloud cloud
COPY sim sim
RUN --mount=type=cache,target=/var/cache/pip \
    pip install $PIP_OPTIONS -c constraints.txt ".[edge]"

FROM python:3.11-slim
# What the compiled llama.cpp links to; the compilers stay behind.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libstdc++6 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /var/lib/draftwire draftwire \
    && mkdir /var/cache/draftwire \
    && chown draftwire:draftwire /var/cache/draftwire
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DRAFTWIRE_CACHE_DIR=/var/cache/draftwire
USER draftwire
WORKDIR /var/lib/draftwire
# The draft model, fetched once: a new volume belongs to the user above.
VOLUME ["/var/cache/draftwire"]
ENTRYPOINT ["draftwire"]
CMD ["--help"]
