/*
 * Services that the subnet administrator knows: rdma_resolve_addrinfo and rdma_getaddrinfo with
 * RAI_SA, by number and by name, for none, one and several records. Only InfiniBand has them; the
 * calls are looked up at run time, for they need RDMACM_1.4.
 */
#include "sa.h"

#include <poll.h>

enum { FLAG_SA = 0x10 };

static int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
static int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **);

static int by_address(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* The subnet administrator has no order of records. Ours asks all ports where the reference asks one: each finds the
 * same records, and they differ in the source address, which is left out without with_source. */
static void show_sorted(struct rdma_addrinfo *list, bool with_source)
{
	char lines[32][200];
	int count = 0;

	for (struct rdma_addrinfo *info = list; info && count < 32; info = info->ai_next)
		snprintf(lines[count++], sizeof(lines[0]), "flags %x family %d type %s ps %04x src %u %s dst %u %s",
			 info->ai_flags, info->ai_family, qp_type_str(info->ai_qp_type), info->ai_port_space,
			 info->ai_src_len, with_source ? addr_str(info->ai_src_addr) : "-", info->ai_dst_len,
			 addr_str(info->ai_dst_addr));
	qsort(lines, count, sizeof(lines[0]), by_address);
	for (int i = 0; i < count; i++)
		if (!i || strcmp(lines[i], lines[i - 1]))
			obs("%s", lines[i]);
}

static struct rdma_addrinfo sa_hints(void)
{
	struct rdma_addrinfo hints;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = FLAG_SA;
	hints.ai_port_space = RDMA_PS_TCP;
	return hints;
}

static bool bind_to_port(struct rdma_cm_id *id)
{
	union address address = local_addr(AF_INET, 0);

	return !rdma_bind_addr(id, &address.sa);
}

static void show_result(struct rdma_cm_id *id)
{
	struct rdma_addrinfo *list = NULL;

	if (CALL(query(id, &list)))
		return;
	show_sorted(list, true);
	rdma_freeaddrinfo(list);
}

static void asynchronous(const char *service)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = sa_hints();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	SETUP(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	SETUP(bind_to_port(id));
	if (!CALL(resolve(id, NULL, service, &hints))) {
		event = get_event("id", channel);
		if (event)
			rdma_ack_cm_event(event);
		show_result(id);
	}
	id_forget(id);
	CALL(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void synchronous(const char *service)
{
	struct rdma_addrinfo hints = sa_hints();
	struct rdma_cm_id *id;

	SETUP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	SETUP(bind_to_port(id));
	if (!CALL(resolve(id, NULL, service, &hints)))
		show_result(id);
	id_forget(id);
	CALL(rdma_destroy_id(id));
}

static void all_ports(const char *service)
{
	struct rdma_addrinfo hints = sa_hints(), *list = NULL;

	if (CALL(rdma_getaddrinfo(NULL, service, &hints, &list)))
		return;
	show_sorted(list, false);
	rdma_freeaddrinfo(list);
}

static void look_for(const char *name, const char *service)
{
	topic("%s", name);
	asynchronous(service);
	synchronous(service);
	all_ports(service);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	resolve = (int (*)(struct rdma_cm_id *, const char *, const char *,
			   const struct rdma_addrinfo *))optional_symbol("rdma_resolve_addrinfo");
	query = (int (*)(struct rdma_cm_id *, struct rdma_addrinfo **))optional_symbol("rdma_query_addrinfo");
	if (!resolve || !query)
		skip_all("the library has no RDMACM_1.4");
	SETUP(register_service(0x1000000000000001ull, "one", 1));
	for (int i = 0; i < 2; i++)
		SETUP(register_service(0x1000000000000010ull + i, "two", i));
	for (int i = 0; i < 9; i++)
		SETUP(register_service(0x1000000000000020ull + i, "nine", i));
	look_for("number", "0x1000000000000001");
	look_for("name", "one");
	look_for("two", "two");
	look_for("nine", "nine");
	look_for("nobody's number", "0x1000000000000099");
	look_for("nobody's name", "nobody");
	return finish();
}
