# make train: learn Sokoban with the built-in model.  make test: run the tests.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip --disable-pip-version-check --quiet
CONFIG ?= configs/sokoban.py
WORKDIR ?= runs/sokoban

.PHONY: train test lint clean

$(VENV)/installed: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt
	touch $@

$(VENV)/installed-dev: $(VENV)/installed setup.py
	$(PIP) install -e ".[dev]"
	touch $@

train: $(VENV)/installed
	$(VENV)/bin/python -m launch.train --config=$(CONFIG) --workdir=$(WORKDIR) $(ARGS)

test: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m pytest -n auto --dist loadfile $(ARGS)

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) build dist *.egg-info
