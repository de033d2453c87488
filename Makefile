# The project's verbs. Each step says what it does and how long it took; one that fails prints what it saw.

.DEFAULT_GOAL := help
.NOTPARALLEL:

# The main row is Python 3.12 or 3.13 with ansible-core 2.21, the second Python 3.11 with ansible-core 2.19.
# Paths stay relative: the checkout may lie under a name with spaces.
MAIN := .venv/bin/python
SECOND := .venv-3.11/bin/python
STEP := sh tools/step.sh
BEGUN := $(shell date +%s)

# A process for each core, and a file's tests in one of them. In the order of collection, so that the long files
# (tests/ansible) come first and the short ones fill what is left.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

# A virtual machine takes one core, a rack of nodes the other, whatever this machine has.
LAB_PARALLEL := -n auto --maxprocesses 2 --no-loadscope-reorder

# Molecule, ansible-lint and the tests start Ansible by its name.
ON_MAIN := PATH="$$PWD/.venv/bin:$$PATH"
ON_SECOND := PATH="$$PWD/.venv-3.11/bin:$$PATH"

.PHONY: help setup demo test static unit test-long fuzz molecule second docs constraints clean begin system-packages \
    lab-setup lab-test lab-demo lab-long lab-rails lab-driver lab-dkms lab-stack lab-lossless lab-runtime lab-nccl lab-containers \
    lab-image

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]*:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: ## Make the environments of both rows, each package checked against its hash
	@sh tools/venv.sh .venv constraints.txt 3.12 3.13 3.11
	@if sh tools/find_python.sh 3.11 >/dev/null 2>&1; then \
	    sh tools/venv.sh .venv-3.11 constraints.txt 3.11; \
	else \
	    echo "No Python 3.11 here, so the second row (ansible-core 2.19) is left out."; \
	fi

demo: ## Show the whole flow on a simulated rack, without a GPU
	@sh tools/venv.sh .venv constraints-runtime.txt 3.12 3.13 3.11
	@$(ON_MAIN) $(MAIN) -m tools.demo

lab-setup: ## Install what the lab needs and build its root file systems (Debian, as root)
	@sh tools/venv.sh .venv constraints.txt 3.12 3.13 3.11
	@$(ON_MAIN) $(STEP) "Make the lab ready" $(MAIN) -m tests.lab setup

lab-test: ## Run the tests on real systemd hosts and on the virtual machine (Debian, as root)
	@mkdir -p build/test
	@if test "$$(id -u)" -eq 0 && command -v apt-get >/dev/null; then \
	    $(MAKE) --no-print-directory lab-setup && \
	    $(ON_MAIN) $(STEP) "Run the lab's tests" \
	        $(MAIN) -m pytest tests/lab $(LAB_PARALLEL) --junitxml=build/test/lab.xml; \
	else \
	    sh tools/not_run.sh "the lab, which needs root on Debian"; \
	fi

lab-demo: lab-setup ## Show the whole flow on two real systemd hosts, with a reboot, without a GPU (as root)
	@$(ON_MAIN) $(MAIN) -m tests.lab.demo

lab-long: lab-setup ## Start and stop lab nodes 32 times and ask for leftovers, and 16 nodes at once (as root)
	@RAILWRIGHT_LAB_CYCLES=32 RAILWRIGHT_LAB_NODES=16 $(ON_MAIN) $(STEP) "Run the lab's long tests" \
	    $(MAIN) -m pytest -s tests/lab/test_lab_teardown.py -k "many or crowd"

lab-rails: lab-setup ## Rails by netplan and NetworkManager, ARP flux, a boot's whole wait, and rails in the virtual machine (as root)
	@$(ON_MAIN) $(STEP) "Run the rails' long tests" $(MAIN) -m pytest -s tests/lab/long_rails.py tests/lab/long_rails_vm.py \
	        tests/lab/long_pcie.py

lab-driver: lab-setup ## Install, upgrade and roll back a driver on a lab node with the real apt (as root)
	@$(ON_MAIN) $(STEP) "Run the driver's story" $(MAIN) -m pytest -s -x tests/lab/long_driver.py

lab-dkms: lab-setup ## Build NVIDIA's modules from Debian's archive, and ask the gate (as root, half an hour)
	@$(ON_MAIN) $(STEP) "Build NVIDIA's modules" $(MAIN) -m pytest -s tests/lab/long_dkms.py

DEBSBOM := .cache/debsbom/bin/debsbom
$(DEBSBOM): constraints-image.txt
	@$(STEP) "Make an environment for debsbom" $(MAIN) -m venv --clear .cache/debsbom
	@$(STEP) "Install the packages of $<" .cache/debsbom/bin/python -m pip install --disable-pip-version-check \
	    --require-hashes --no-deps --only-binary :all: -r $<
	@touch $@

lab-image: lab-setup $(DEBSBOM) ## Bake the rental image twice, boot it on three chassis, cut the power of first boots (as root, an hour)
	@$(ON_MAIN) $(STEP) "Run the image's long tests" \
	    env RAILWRIGHT_DEBSBOM="$${RAILWRIGHT_DEBSBOM:-$$PWD/$(DEBSBOM)}" \
	    $(MAIN) -m pytest -s tests/lab/long_image.py tests/lab/long_image_recorded.py \
	        tests/lab/long_image_driver.py tests/lab/long_image_killed.py

lab-lossless: lab-setup ## Lossless rails: in the virtual machine over a driver again and a reboot, and by mlnx_qos on a lab node (as root)
	@$(ON_MAIN) $(STEP) "Run the lossless rails' long tests" \
	    $(MAIN) -m pytest -s tests/lab/long_lossless.py tests/lab/long_mlnx_qos.py

lab-nccl: lab-setup ## NCCL's road with a real nvcc (from NVIDIA's wheels): built once, brought to two nodes, held, opened (as root)
	@$(ON_MAIN) $(STEP) "Build, bring and install with a real nvcc" $(MAIN) -m pytest -s tests/lab/long_nccl.py

lab-containers: lab-setup ## Docker and podman from Debian on lab nodes: pinned, merged, run, killed at ten points (as root)
	@$(ON_MAIN) $(STEP) "Run the containers' story" $(MAIN) -m pytest -s tests/lab/long_containers.py tests/lab/long_container_nodes.py

lab-runtime: lab-setup ## Build the runtime with the real torch on a lab node without a way out, killed at ten moments (as root)
	@$(ON_MAIN) $(STEP) "Run the runtime's story" $(MAIN) -m pytest -s -x tests/lab/long_runtime.py

lab-stack: lab-setup ## Real apt at every kill point, real dnf, GRUB in the virtual machine (as root; packages from Debian)
	@RAILWRIGHT_LONG=1 $(ON_MAIN) $(STEP) "Run the long tests of packages and boot" \
	    $(MAIN) -m pytest -s tests/lab/test_lab_apt.py tests/lab/long_dnf.py tests/lab/long_vm_grub.py

test: begin setup system-packages static unit molecule second lab-test ## Run every layer, and on the second row pytest and the demo
	@took=$$(($$(date +%s) - $(BEGUN))); echo "make test took $$((took / 60)) min $$((took % 60)) s."
	@$(MAIN) tools/test_totals.py build/test/*.xml

static: ## Check style, types, YAML, roles and generated pages
	@sh tools/static.sh

unit: ## Run pytest on the main row and ask for the coverage of what decides and what writes
	@mkdir -p build/test
	@rm -f build/test/coverage build/test/coverage.*
	@$(ON_MAIN) $(STEP) "Run pytest on the main row" \
	    env COVERAGE_PROCESS_START=pyproject.toml $(MAIN) -m pytest $(PARALLEL) --junitxml=build/test/main.xml
	@$(STEP) -q "Add up what the tests ran" $(MAIN) -m coverage combine
	@$(STEP) "Ask what of railwright.node and railwright.plan no test ran" $(MAIN) -m coverage report

test-long: ## Run the writer's sweeps whole (`make unit` runs an eighth, by the commit) and NVIDIA's real builds (as root)
	@mkdir -p build/test
	@RAILWRIGHT_LONG=1 $(ON_MAIN) $(STEP) "Run the long sweeps whole" \
	    $(MAIN) -m pytest -s tests/unit/test_state_crash.py tests/unit/test_state_faults.py \
	        tests/unit/test_state_environment_crash.py
	@if test "$$(id -u)" -eq 0 && command -v apt-get >/dev/null; then \
	    $(MAKE) --no-print-directory lab-dkms; \
	else \
	    sh tools/not_run.sh "the builds of NVIDIA's modules, which need root on Debian"; \
	fi

fuzz: ## Damage every kind of capture 20,000 times; `make unit` does so 2,000 times
	@RAILWRIGHT_FUZZ=20000 $(ON_MAIN) $(STEP) "Damage every kind of capture 20,000 times" \
	    $(MAIN) -m pytest -s tests/unit/test_captures_fuzz.py

molecule: ## Run the playbooks on fake nodes, one Molecule scenario after the other
	@if test -x .venv/bin/molecule; then \
	    $(ON_MAIN) $(STEP) "Run every Molecule scenario" $(MAIN) -m molecule -c .config/molecule/config.yml test --all; \
	else \
	    sh tools/not_run.sh "Molecule, which needs Python 3.12 or 3.13"; \
	fi

second: ## Run pytest and the demo's playbooks on the second row: a quarter of the unit tests, by the commit
	@mkdir -p build/test
	@if test -x $(SECOND); then \
	    $(ON_SECOND) $(STEP) "Run pytest on the second row (ansible-core 2.19)" \
	        env RAILWRIGHT_ROW=second $(SECOND) -m pytest $(PARALLEL) --junitxml=build/test/second.xml && \
	    $(ON_SECOND) $(STEP) -q "Run the demo's playbooks on the second row" $(SECOND) -m tools.demo; \
	else \
	    sh tools/not_run.sh "the second row, which needs Python 3.11"; \
	fi

docs: ## Write the tables of the roles' READMEs from their argument specs
	@$(ON_MAIN) $(MAIN) tools/role_docs.py

constraints: ## Lock the packages of both rows anew (UPGRADE=1: with the newest versions)
	@UPGRADE=$(UPGRADE) sh tools/lock.sh

clean: ## Remove what make made, the environments too
	rm -rf .venv .venv-3.11 .cache build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

begin:
	@rm -rf build/test

system-packages:
	@sh tools/system_packages.sh
