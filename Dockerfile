# The image of the server: `pilot-discovery` where charts expect it, user 1337, nothing written outside mounted volumes.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
# Scripts name their interpreter by its full path, so the environment is made where the last stage has it. It gets no
# pip of its own: the builder's installs into it.
RUN python -m venv --without-pip /opt/ambientd \
    && python -m pip --python /opt/ambientd/bin/python install --require-hashes --only-binary :all: -r requirements.lock \
    && python -m venv /build \
    && /build/bin/pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md ./
COPY api api
COPY control control
# The root file system is read-only at run time: bytecode that is not written now never is.
RUN /build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && python -m pip --python /opt/ambientd/bin/python install --no-deps --no-index /wheels/*.whl \
    && /opt/ambientd/bin/python -m compileall -q -j 0 /opt/ambientd/lib \
    && ls /opt/ambientd/bin/pilot-discovery /opt/ambientd/bin/ambientd /opt/ambientd/bin/ambientctl

FROM python:${PYTHON_VERSION}-slim
# Nothing in the image installs or builds: no pip, and no copy of pip that ensurepip could bring back. The base image
# has no bytecode of the standard library; a module that does not compile (there are samples of old syntax) is no harm.
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore pip setuptools wheel \
    && rm -rf /usr/local/lib/python3.*/ensurepip /root/.cache \
    && { python -m compileall -q -j 0 /usr/local/lib/python3.* || :; } \
    && groupadd --gid 1337 ambientd \
    && useradd --uid 1337 --gid 1337 --no-create-home --home-dir / --shell /usr/sbin/nologin ambientd
COPY --from=build /opt/ambientd /opt/ambientd
# Charts start /usr/local/bin/pilot-discovery; support tools call it by its bare name.
RUN ln -s /opt/ambientd/bin/pilot-discovery /opt/ambientd/bin/ambientd /opt/ambientd/bin/ambientctl /usr/local/bin/ \
    && pilot-discovery version --short
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/pilot-discovery"]
