/*
 * What scripts/install-test and debian/tests/link build in each way that programs are built. It calls into the library where
 * that needs no device, and includes every header.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma_abi.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

/* Linked statically, this comes before what the library does when it is loaded. Without a device the call fails, but not for that. */
static int early;

__attribute__((constructor)) static void call_early(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (channel)
		rdma_destroy_event_channel(channel);
	else
		early = errno;
}

int main(void)
{
	if (early == EAGAIN)
		return 3;
	if (strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"))
		return 1;
	if (rdma_destroy_id(NULL) != -1 || errno != EINVAL)
		return 2;
	rdma_freeaddrinfo(NULL);
	puts("works");
	return 0;
}
