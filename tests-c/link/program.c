/*
 * The program that scripts/install-test and debian/tests/link build in every way in which programs are built. It
 * includes every header, and makes calls that need no device.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma_abi.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

/* With a static library this may run before the library's initialisation. The call fails for lack of a device only. */
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
