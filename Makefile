# make train     learn Sokoban with the built-in model
# make test      lint and the fast tests: minutes on two cores
# make test-all  lint and every test, as continuous integration runs them;
#                with ARGS=--record-durations, which tests are fast is decided anew
# make lint      ruff alone
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip --disable-pip-version-check
PYTEST = $(VENV)/bin/python -m pytest -n auto --dist worksteal
CONFIG ?= configs/sokoban.py
WORKDIR ?= runs/sokoban

.PHONY: train test test-all lint clean

$(VENV)/installed: requirements.txt setup.py
	@$(PYTHON) -c "import sys; v = sys.version_info; v >= (3, 11) or sys.exit(\
	'Python %d.%d is too old: make PYTHON=python3.11 (or 3.12, 3.13)' % v[:2])"
	@echo "installing the requirements into $(VENV), once: one to three minutes"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed setup.py
	@echo "installing the test requirements into $(VENV), once: one to three minutes"
	$(PIP) install -e ".[dev]"
	touch $@

train: $(VENV)/installed
	$(VENV)/bin/python -m launch.train --config=$(CONFIG) --workdir=$(WORKDIR) $(ARGS)

test: lint
	$(PYTEST) $(ARGS)

test-all: lint
	$(PYTEST) -m "" $(ARGS)

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) build dist *.egg-info
