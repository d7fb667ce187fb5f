# syntax=docker/dockerfile:1
# CPU: docker build --target cpu -t ppcls:cpu .
# GPU: docker build --target gpu -t ppcls:gpu .      with PyPI's Paddle 2.6.2, for GPUs with compute capability 6.1 to 8.6
#      docker build --target cu126 -t ppcls:gpu .    with Paddle 3.3.1, for 8.9 and 9.0 (RTX 40, H100)
#      docker build --target cu129 -t ppcls:gpu .    with Paddle 3.3.1, for 10.0 and later (B200, RTX 50)
# Serve: docker build --target serve -t ppcls:serve .
#      docker run --rm -p 8000:8000 -v "$PWD/runs/pets:/model:ro" ppcls:serve
# Run: docker run --rm --user "$(id -u)" -v "$PWD:/data" ppcls:cpu train pictures --output runs/pets
#      with GPUs: docker run --gpus all --shm-size=8g … ppcls:gpu …
# Downloaded weights are in /cache; -v ppcls-cache:/cache keeps them for the next container.

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim AS cpu
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
# hadolint ignore=DL3013
RUN set -- /wheels/*.whl && pip install --no-cache-dir "$1[cpu,onnx,serve,loggers,demo]" && rm -r /wheels \
    && useradd --create-home --uid 1000 ppcls && mkdir --mode 1777 /cache
ENV PPCLS_HOME=/cache
USER 1000
WORKDIR /data
ENTRYPOINT ["ppcls"]
CMD ["--help"]

# Answers on port 8000 with the model that is mounted at /model. Docker reports it as healthy while /ready answers 200.
FROM cpu AS serve
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
CMD ["serve", "--model", "/model", "--host", "0.0.0.0", "--log-format", "json"]

# Paddle's packages for CUDA 12 contain CUDA and cuDNN. The host provides the driver.
FROM python:3.11-slim AS cuda12
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
ENV PPCLS_HOME=/cache NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /data
ENTRYPOINT ["ppcls"]
CMD ["--help"]

FROM cuda12 AS cu126
# hadolint ignore=DL3013
RUN pip install --no-cache-dir paddlepaddle-gpu==3.3.1 -i https://www.paddlepaddle.org.cn/packages/stable/cu126/ \
    && set -- /wheels/*.whl && pip install --no-cache-dir "$1[onnx,serve,loggers,demo]" && rm -r /wheels \
    && useradd --create-home --uid 1000 ppcls && mkdir --mode 1777 /cache
USER 1000

FROM cuda12 AS cu129
# hadolint ignore=DL3013
RUN pip install --no-cache-dir paddlepaddle-gpu==3.3.1 -i https://www.paddlepaddle.org.cn/packages/stable/cu129/ \
    && set -- /wheels/*.whl && pip install --no-cache-dir "$1[onnx,serve,loggers,demo]" && rm -r /wheels \
    && useradd --create-home --uid 1000 ppcls && mkdir --mode 1777 /cache
USER 1000

# This image has CUDA 11.8 and cuDNN 8, which Paddle 2.6.2 needs. Ubuntu 22.04 has Python 3.10.
FROM nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04 AS gpu
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /wheels /wheels
# hadolint ignore=DL3013
RUN set -- /wheels/*.whl && python3 -m pip install --no-cache-dir --upgrade pip \
    && python3 -m pip install --no-cache-dir "$1[gpu,onnx,serve,loggers,demo]" \
    && rm -r /wheels && useradd --create-home --uid 1000 ppcls && mkdir --mode 1777 /cache
ENV PPCLS_HOME=/cache
USER 1000
WORKDIR /data
ENTRYPOINT ["ppcls"]
CMD ["--help"]
