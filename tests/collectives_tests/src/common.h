#pragma once
#define NCCL_TESTS_VERSION "0.1.0"
