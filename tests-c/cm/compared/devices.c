/* rdma_get_devices, rdma_free_devices, sharing of contexts with ids. */
#include "common.h"

#include <sys/syscall.h>

static void names(struct ibv_context **list, int count)
{
	/* The order is the kernel's; show the names sorted. */
	const char *seen[16];
	int n = 0;

	for (int i = 0; i < count && n < 16; i++)
		seen[n++] = ibv_get_device_name(list[i]->device);
	for (int i = 0; i < n; i++)
		for (int j = i + 1; j < n; j++)
			if (strcmp(seen[i], seen[j]) > 0) {
				const char *swap = seen[i];
				seen[i] = seen[j];
				seen[j] = swap;
			}
	for (int i = 0; i < n; i++)
		obs("device %s", seen[i]);
}

static void list_twice(void)
{
	int first_count = -1, second_count = -1, fds = open_fds();
	struct ibv_context **first, **second;

	topic("list");
	first = CALL_PTR(rdma_get_devices(&first_count));
	second = CALL_PTR(rdma_get_devices(&second_count));
	if (!first || !second)
		return;
	obs("counts %d %d", first_count, second_count);
	CHECK(first[first_count] == NULL);
	CHECK(first != second);
	names(first, first_count);
	CHECK(memcmp(first, second, sizeof(*first) * (size_t)first_count) == 0);
	rdma_free_devices(first);
	names(second, second_count);
	rdma_free_devices(second);
	obs("descriptors left %s", open_fds() > fds ? "more" : "same");
	first = CALL_PTR(rdma_get_devices(NULL));
	if (first)
		rdma_free_devices(first);
}

static void shared_with_ids(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_context **list;
	struct rdma_cm_id *one = NULL, *two = NULL;
	int count = 0, found = 0;

	topic("shared with ids");
	CALL(rdma_create_id(NULL, &one, NULL, RDMA_PS_TCP));
	CALL(rdma_create_id(NULL, &two, NULL, RDMA_PS_TCP));
	CALL(rdma_bind_addr(one, &address.sa));
	CALL(rdma_bind_addr(two, &address.sa));
	CHECK(one->verbs == two->verbs);
	CHECK(one->pd == two->pd);
	CHECK(one->pd->context == one->verbs);
	obs("device %s port %u", ibv_get_device_name(one->verbs->device), one->port_num);
	list = rdma_get_devices(&count);
	for (int i = 0; i < count; i++)
		found += list[i] == one->verbs;
	obs("found %d", found);
	rdma_free_devices(list);
	rdma_destroy_id(one);
	CHECK(two->pd != NULL);
	rdma_destroy_id(two);
}

static void held_by_list(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;
	struct ibv_context **list;
	struct ibv_device_attr attr;
	int count = 0;

	topic("list outlives ids");
	list = rdma_get_devices(&count);
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_destroy_id(id));
	for (int i = 0; i < count; i++)
		CALL(ibv_query_device(list[i], &attr));
	rdma_free_devices(list);
}

/* The PD of the ids lives until the last id and the last list are gone. */
static void pd_held_by_list(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;
	struct ibv_context **list;
	static char memory[64];
	struct ibv_mr *mr;
	struct ibv_pd *pd;

	topic("list keeps the PD");
	list = rdma_get_devices(NULL);
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	CALL(rdma_bind_addr(id, &address.sa));
	pd = id->pd;
	CALL(rdma_destroy_id(id));
	mr = CALL_PTR(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	if (mr)
		CALL(ibv_dereg_mr(mr));
	CHECK(pd->context != NULL);
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	CALL(rdma_bind_addr(id, &address.sa));
	CHECK(id->pd == pd);
	rdma_free_devices(list);
	mr = CALL_PTR(ibv_reg_mr(id->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	if (mr)
		CALL(ibv_dereg_mr(mr));
	CALL(rdma_destroy_id(id));
}

/* Descriptors of a context that is open when main returns; threads of a program may use it still. */
static struct { int cmd, async; } open_at_exit = { -1, -1 };

/* The libraries call this close(), too: the loader searches the program first. */
int close(int fd)
{
	if (fd >= 0 && (fd == open_at_exit.cmd || fd == open_at_exit.async))
		obs("a context is closed at exit");
	return (int)syscall(SYS_close, fd);
}

static void open_until_the_end(void)
{
	struct ibv_context **list;

	topic("at exit");
	list = CALL_PTR(rdma_get_devices(NULL));
	if (!list)
		return;
	open_at_exit.cmd = list[0]->cmd_fd;
	open_at_exit.async = list[0]->async_fd;
	rdma_free_devices(list);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	list_twice();
	shared_with_ids();
	held_by_list();
	pd_held_by_list();
	open_until_the_end();
	return finish();
}
