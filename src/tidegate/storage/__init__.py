"""Places for files, by name: a folder, an object store, memory."""
