// Carries the precompiled torch/torch.h; there is nothing else in it.
