// Says which library it runs with, and whether it was built with MPI.
#include <stdio.h>

#include "common.h"
#include "nccl.h"
#ifdef MPI_SUPPORT
#include <mpi.h>
#endif

#ifdef __CUDACC__
__global__ void nothing() {}
#endif

int main() {
    int version = 0;
    ncclGetVersion(&version);
#ifdef MPI_SUPPORT
    const char *mpi = "with MPI";
#else
    const char *mpi = "without MPI";
#endif
    printf("nccl-tests %s, library %d, %s\n", NCCL_TESTS_VERSION, version, mpi);
#ifdef __CUDACC__
    nothing<<<1, 1>>>();
#endif
    return 0;
}
