"""The runtime: buffers, thunks and executables."""
