# What the documentation takes from the code.

.PHONY: docs-reference

docs-reference: $(VENV)/.dev  ## write docs/reference.md and the tables of docs/fleet-file.md anew
	@$(BIN)/python docs/generate.py
