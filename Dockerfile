# One image for head, workers and submitter: `make image`. How it is built elsewhere: docs/deploy.md.
ARG PYTHON_IMAGE=python:3.13-slim
ARG UV_IMAGE=astral/uv:0.13.8

# hadolint ignore=DL3006
FROM ${UV_IMAGE} AS uv

# Gigabytes, which change only with requirements.txt: code is added to them in the last stage.
# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS packages
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never
COPY requirements.txt /
# Whoever installs from another registry hands its settings in as the secret `uv`: no layer keeps them.
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    uv venv --python 3.13 /opt/venv \
    && uv pip sync --require-hashes --python /opt/venv/bin/python /requirements.txt

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
# wget: probes of older KubeRay. procps: pkill, with which a pod that is deleted ends its run in order.
# Versions are Debian's, which keeps only the newest of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates procps wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 ray \
    && useradd --uid 1000 --gid ray --create-home --shell /bin/bash ray \
    && install --directory --owner ray --group ray /app/runs \
    # A login shell, in which some operators start Ray, sets PATH anew.
    && echo "PATH=/opt/venv/bin:\$PATH" > /etc/profile.d/venv.sh
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/home/ray \
    PYTHONUNBUFFERED=1 \
    RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /app
COPY . ./
# Editable, so that what runs is /app. It is built by the setuptools of requirements.txt: nothing is fetched.
RUN --mount=type=bind,from=uv,source=/uv,target=/usr/local/bin/uv \
    uv pip install --offline --no-cache --no-deps --no-build-isolation --python /opt/venv/bin/python --editable . \
    && python -m compileall -q .
USER 1000:1000

ARG VERSION=0.1.0
ARG GIT_COMMIT=""
# There is no .git here: meta.json takes the commit from this.
ENV DSGD_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.title="dsgd-lab" \
      org.opencontainers.image.description="A laboratory for distributed SGD" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${GIT_COMMIT}"

# KubeRay puts `ray start` in the place of both; on its own the image is main.py.
ENTRYPOINT ["python", "main.py"]
CMD ["--help"]
