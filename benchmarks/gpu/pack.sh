#!/bin/sh
# Pack what a bare machine lacks into pieces of 40 MiB, .lab/site.00, .lab/site.01 …: run it in the
# repository's root, where there is a package index. Other chips' code is zeroed.
#   sh benchmarks/gpu/pack.sh [ARCHITECTURE=90]     90: H100 and H200; 0 keeps all code
set -eu
architecture=${1:-90}
here=$(dirname "$0")
packages='onnxruntime-gpu pydantic pydantic_core annotated-types typing-inspection'
rm -rf .lab && mkdir -p .lab/site
${PYTHON:-python3} -m pip download --quiet --no-deps --dest .lab/wheels --constraint constraints.txt \
  --python-version 3.12 --only-binary=:all: --platform manylinux_2_28_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $packages
for wheel in .lab/wheels/*.whl; do ${PYTHON:-python3} -m zipfile -e "$wheel" .lab/site; done
cd .lab/site/onnxruntime
rm -rf tools quantization transformers datasets capi/libonnxruntime.so.* \
  capi/libonnxruntime_providers_tensorrt.so
cd - > /dev/null
if [ "$architecture" != 0 ]; then
  ${PYTHON:-python3} "$here/slim.py" .lab/site/onnxruntime/capi/libonnxruntime_providers_cuda.so "$architecture"
fi
tar -C .lab/site -cf - . | nice xz -T2 -6 --memlimit-compress=4GiB | split -b 40m -d - .lab/site.
rm -rf .lab/site .lab/wheels
ls -l .lab
