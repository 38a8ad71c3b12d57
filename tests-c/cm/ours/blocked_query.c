/*
 * Queries of devices, which libibverbs answers through functions of this program: one that takes long, as in the
 * firmware of an adapter, does not delay calls for other ids; a list of devices that is not complete, as without
 * descriptors, does not end the use of those that it lacks.
 */
#include "cases.h"

#include <dlfcn.h>

#define ORIGINAL(function) ((__typeof__(function) *)dlsym(RTLD_NEXT, #function))

/* What the first query of a port waits for. */
static void *(*meanwhile)(void *);
/* A list has this device only, which does not open. */
static struct ibv_device unknown;
static bool is_incomplete;
static struct ibv_device **complete;
static int closed;

/* The header has a macro of this name. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	void *(*body)(void *) = __atomic_exchange_n(&meanwhile, NULL, __ATOMIC_SEQ_CST);
	pthread_t thread;

	if (body)
		EXPECT(!pthread_create(&thread, NULL, body, NULL) && !pthread_join(thread, NULL));
	return ORIGINAL(ibv_query_port)(context, port, attr);
}

struct ibv_device **ibv_get_device_list(int *count)
{
	static struct ibv_device *incomplete[2] = { &unknown };
	struct ibv_device **list = ORIGINAL(ibv_get_device_list)(count);

	if (!is_incomplete || !list)
		return list;
	complete = list;
	*count = 1;
	return incomplete;
}

void ibv_free_device_list(struct ibv_device **list)
{
	ORIGINAL(ibv_free_device_list)(list[0] == &unknown ? complete : list);
}

__be64 ibv_get_device_guid(struct ibv_device *of)
{
	return of == &unknown ? 1 : ORIGINAL(ibv_get_device_guid)(of);
}

int ibv_get_device_index(struct ibv_device *of)
{
	return of == &unknown ? 12345 : ORIGINAL(ibv_get_device_index)(of);
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
	errno = EMFILE;
	return of == &unknown ? NULL : ORIGINAL(ibv_open_device)(of);
}

int ibv_close_device(struct ibv_context *context)
{
	closed++;
	return ORIGINAL(ibv_close_device)(context);
}

/* Binds an id to the device, and destroys it. Returns the device. */
static struct ibv_context *use_device(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_context *used;
	struct rdma_cm_id *id;

	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, &address.sa));
	used = id->verbs;
	EXPECT(!rdma_destroy_id(id));
	return used;
}

static bool was_used;

static void *use_devices(void *unused)
{
	struct ibv_context **devices;
	int count;

	EXPECT(use_device() && (devices = rdma_get_devices(&count)) && count > 0);
	rdma_free_devices(devices);
	was_used = true;
	return unused;
}

static void other_ids_beside_a_query(void)
{
	struct pair pair = { 0 };

	meanwhile = use_devices;
	EXPECT(pair_connect(&pair, RDMA_PS_TCP, AF_INET) && was_used);
	pair_close(&pair);
}

static void incomplete_list(void)
{
	struct ibv_context **devices, *used = use_device();
	int count;

	is_incomplete = true;
	EXPECT((devices = rdma_get_devices(&count)) && count == 0);
	is_incomplete = false;
	rdma_free_devices(devices);
	EXPECT(!closed && use_device() == used && !closed);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(other_ids_beside_a_query);
	CASE(incomplete_list);
	return finish();
}
