# The cloud's half: `draftwire-cloud`, the target model behind gRPC. Build it from the top of the repository:
#
#     docker build -f docker/cloud.Dockerfile -t draftwire-cloud .
#     docker run --init -p 127.0.0.1:50051:50051 -v draftwire-cloud-models:/var/cache/draftwire draftwire-cloud
#
# The service asks nobody for a password: publish its port on networks that you trust only.

FROM python:3.11-slim AS build
# Empty: the torch of constraints.txt, in the build that plain pip takes. It computes on the CPU and, on
# x86-64, also on NVIDIA GPUs; its CUDA libraries are what makes the image large. Another one, for example:
#   --build-arg TORCH=torch==2.9.1        any release that pyproject.toml allows
#   --build-arg PIP_OPTIONS="..."         more options for pip, such as where the CPU-only builds lie;
#                                         a build like 2.13.0+cpu from there satisfies the pin as it is
ARG TORCH=""
ARG PIP_OPTIONS=""
ENV PIP_CACHE_DIR=/var/cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# torch first and by itself: it is most of the image, and a change of our code does not touch this layer.
RUN --mount=type=cache,target=/var/cache/pip \
    if [ -n "$TORCH" ]; then sed -i '/^torch==/d' constraints.txt; fi \
    && pip install $PIP_OPTIONS -c constraints.txt "${TORCH:-torch}"
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY models models
COPY edge edge
COPY cloud cloud
COPY sim sim
RUN --mount=type=cache,target=/var/cache/pip \
    pip install $PIP_OPTIONS -c constraints.txt ".[cloud]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home --home-dir /var/lib/draftwire draftwire \
    && mkdir /var/cache/draftwire \
    && chown draftwire:draftwire /var/cache/draftwire
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOKENIZERS_PARALLELISM=false \
    DRAFTWIRE_CACHE_DIR=/var/cache/draftwire
USER draftwire
WORKDIR /var/lib/draftwire
# Models, fetched and converted once: a new volume belongs to the user above.
VOLUME ["/var/cache/draftwire"]
EXPOSE 50051
# The first start downloads the target and converts it before it serves, hence the long start period.
HEALTHCHECK --interval=10s --timeout=15s --start-period=60m --retries=3 \
    CMD ["draftwire-cloud", "health", "127.0.0.1:50051"]
ENTRYPOINT ["draftwire-cloud"]
CMD ["serve", "--host", "0.0.0.0", "--port", "50051"]
