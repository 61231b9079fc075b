# One image for head, workers and submitter: `make image`. How it is built elsewhere: docs/deploy.md.
ARG PYTHON_IMAGE=python:3.13-slim
ARG UV_IMAGE=astral/uv:0.13.8

# hadolint ignore=DL3006
FROM ${UV_IMAGE} AS uv

# Gigabytes that change only with requirements.txt; the code is added in the last stage.
# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS packages
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never
COPY requirements.txt /
# To install from another registry, pass its settings as the secret `uv`: no layer keeps them.
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    uv venv --python 3.13 /opt/venv \
    && uv pip sync --require-hashes --python /opt/venv/bin/python /requirements.txt

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
# wget: the probes of heads. procps: pkill, with which a deleted pod ends its run cleanly. dataset-fashion-mnist:
# the images of --workload fashion, 31 MB. openssl: certificates of a pod, with TLS.
# Versions are Debian's, which keeps only the newest of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates dataset-fashion-mnist openssl procps wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 ray \
    && useradd --uid 1000 --gid ray --create-home --shell /bin/bash ray \
    && install --directory --owner ray --group ray /app/runs \
    # Some operators start Ray in a login shell, which resets PATH.
    && echo "PATH=/opt/venv/bin:\$PATH" > /etc/profile.d/venv.sh
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/home/ray \
    PYTHONUNBUFFERED=1 \
    RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /app
COPY . ./
# Editable, so that /app itself runs. The setuptools of requirements.txt build it: nothing is downloaded.
RUN --mount=type=bind,from=uv,source=/uv,target=/usr/local/bin/uv \
    uv pip install --offline --no-cache --no-deps --no-build-isolation --python /opt/venv/bin/python --editable . \
    && python -m compileall -q .
USER 1000:1000

ARG VERSION=0.1.0
ARG GIT_COMMIT=""
ARG IMAGE_TAG=""
# There is no .git here: meta.json takes the commit from this.
ENV DSGD_GIT_COMMIT=${GIT_COMMIT}
# A part of the name of a job's records: what another image computes is another result.
ENV DSGD_IMAGE_TAG=${IMAGE_TAG}
LABEL org.opencontainers.image.title="dsgd-lab" \
      org.opencontainers.image.description="A laboratory for distributed SGD" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${GIT_COMMIT}"

# KubeRay replaces both with `ray start`; by itself the image runs main.py.
ENTRYPOINT ["python", "main.py"]
CMD ["--help"]
