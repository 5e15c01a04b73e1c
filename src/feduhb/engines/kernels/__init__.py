"""GPU kernels in Triton, for the parts of a step where the profile asks for them."""
