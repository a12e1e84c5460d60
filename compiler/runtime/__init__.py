"""The runtime: buffers, thunks, executables."""
