/* Declarations for the parts of `steps`. */
#ifndef TESTS_FAULTS_STEPS_H
#define TESTS_FAULTS_STEPS_H

#include <stdbool.h>
#include <rdma/rdma_cma.h>

enum { MAX_IDS = 32, DEPTH = 16, SIZE = 2048, RESOLVE_MS = 5000 };

/* An id, and the resources of its QP. */
struct slot {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	unsigned char *buffer; /* DEPTH receives, then one send */
	unsigned sent, received;
	bool under_way; /* a message is outstanding */
};

void print(const char *what, const char *result);
/* Prints 0 or the name of errno. Returns true for 0. */
bool result(const char *what, int ret);
/* Waits until the descriptor is readable. */
bool readable(const char *what, int fd);
/* The same, but returns false as soon as the other descriptor is readable. */
bool readable_before(const char *what, int fd, int other);

void step_recv(struct slot *s, unsigned n);
void step_got(struct slot *s, unsigned n);
void step_send(struct slot *s, unsigned n);
void step_flood(struct slot *s);
void step_drain(struct slot *s);
void step_post(struct slot *s);
void step_reap(struct slot *s);

void step_cut(void);
void step_files(int n);
void step_memlock(int n);

#endif
