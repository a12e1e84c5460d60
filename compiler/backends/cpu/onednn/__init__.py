"""oneDNN: convolutions, matrix products and pooling by the library in the wheel `onednn-cpu-gomp`, if it is there."""
