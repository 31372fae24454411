"""The asynchronous client. `generate.py` writes the synchronous one, in the folder `_sync`, from these files."""
