/* The matrix product of gemm.py without Tensor Cores.
 *
 * The types Word and Element, FILL(x), which fills a word with an element of A, and MULTIPLY_ADD(acc, a, b) are defined
 * before this text is compiled, for each number format.
 */
// Memory is read two neighbours at a time: an alignment that the compiler knows makes it one instruction.
struct __align__(2 * sizeof(Word)) Words { Word first, second; };
struct __align__(2 * sizeof(Element)) Elements { Element first, second; };
#define TILE 128
#define DEPTH 8

extern "C" __global__ void __launch_bounds__(256)
plain_product(const Element *A, const Word *B, Word *C, int words, int k)
{
    __shared__ __align__(16) Word tileA[2][DEPTH][TILE], tileB[2][DEPTH][TILE];
    const int thread = threadIdx.x, x = thread % 16 * 2, y = thread / 16 * 2;
    const int rowA = thread / 2, depthA = thread % 2 * 4;
    const int rowB = thread / 32, columnB = thread % 32 * 4;
    const Element *nextA = A + (long long)(blockIdx.y * TILE + rowA) * k + depthA;
    const Word *nextB = B + (long long)rowB * words + blockIdx.x * TILE + columnB;
    Word sums[8][8] = {};
    Elements heldA[2];
    Words heldB[2];

#define FETCH()                                                                     \
    heldA[0] = ((const Elements *)nextA)[0], heldA[1] = ((const Elements *)nextA)[1]; \
    heldB[0] = ((const Words *)nextB)[0], heldB[1] = ((const Words *)nextB)[1];       \
    nextA += DEPTH;                                                                 \
    nextB += (long long)DEPTH * words
#define KEEP(half)                                                                  \
    for (int i = 0; i < 2; i++) {                                                   \
        tileA[half][depthA + 2 * i][rowA] = FILL(heldA[i].first);                   \
        tileA[half][depthA + 2 * i + 1][rowA] = FILL(heldA[i].second);              \
        *(Words *)&tileB[half][rowB][columnB + 2 * i] = heldB[i];                   \
    }

    FETCH();
    KEEP(0);
    __syncthreads();
    int half = 0;
    for (int done = 0; done < k; done += DEPTH, half ^= 1) {
        const bool more = done + DEPTH < k;
        if (more) { FETCH(); }
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            Word a[8], b[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Words pair = *(const Words *)&tileA[half][depth][i * 32 + y];
                a[2 * i] = pair.first, a[2 * i + 1] = pair.second;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const Words pair = *(const Words *)&tileB[half][depth][j * 32 + x];
                b[2 * j] = pair.first, b[2 * j + 1] = pair.second;
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) { MULTIPLY_ADD(sums[i][j], a[i], b[j]); }
        }
        if (more) { KEEP(half ^ 1); }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long row = blockIdx.y * TILE + i / 2 * 32 + y + i % 2;
            const Words pair = {sums[i][2 * j], sums[i][2 * j + 1]};
            *(Words *)&C[row * words + blockIdx.x * TILE + j * 32 + x] = pair;
        }
}
