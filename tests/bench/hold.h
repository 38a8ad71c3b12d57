/* Many simultaneous connections. */
#ifndef BENCH_HOLD_H
#define BENCH_HOLD_H

#include "net.h"

struct task {
	uint32_t what, wait, size, count, connections;
};

void hold_server(const struct task *t, const struct conn *first, int listener);
void hold_client(const struct task *t, const struct conn *first, const struct sockaddr_in *to);

#endif
