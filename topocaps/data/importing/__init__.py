"""Import of arrays, data sets, files and folders as sequences."""
