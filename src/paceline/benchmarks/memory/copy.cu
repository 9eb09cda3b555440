/* A copy by the units that compute: 16 bytes for each thread at a time, then what is left. */
extern "C" __global__ void copy_by_sm(uint4 *to, const uint4 *from, int words, int rest)
{
    int step = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int at = first; at < words; at += step)
        to[at] = from[at];
    if (first < rest)
        ((unsigned char *)(to + words))[first] = ((const unsigned char *)(from + words))[first];
}
