# One image for all three services: `tandem coordinator`, `tandem draft-worker`, `tandem target-worker`.
#
# Packages come from the index that pip is set up for; PIP_OPTIONS says otherwise, for example
# "--no-index --find-links /src/wheels" with the wheels in a folder of that name beside this file (CPU build of PyTorch,
# machines without a network).
FROM python:3.11-slim AS build
ARG PIP_OPTIONS=""
COPY pyproject.toml README.md wheels* /src/wheels/
COPY coordinator /src/coordinator
COPY draft_worker /src/draft_worker
COPY target_worker /src/target_worker
COPY tandem /src/tandem
RUN mv /src/wheels/pyproject.toml /src/wheels/README.md /src/ \
    && python3 -m venv /opt/tandem \
    && /opt/tandem/bin/pip install --no-cache-dir $PIP_OPTIONS "/src[ray]"

# Nothing here can build anything: the interpreter, and what the stage above installed.
FROM python:3.11-slim
COPY --from=build /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 7070 7071 7072 9090 9091 9092
ENTRYPOINT ["tandem"]
