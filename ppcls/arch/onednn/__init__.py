"""Faster layers for NHWC images on CPUs, which call the oneDNN library that Paddle ships.

Paddle's own convolutions on a CPU unfold each image and multiply matrices. oneDNN has convolutions for the
vector instructions of each processor. Paddle trains with them only in compiled programs, and fails for many
networks: Paddle 3.3.1 ends with a segmentation fault if a max pooling follows a convolution.
"""
