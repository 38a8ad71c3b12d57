/*
 * The calls of RDMACM_1.4: rdma_resolve_addrinfo, rdma_query_addrinfo, rdma_write_cm_event, and
 * the flags RAI_SA and RAI_DNS. Looked up at run time, so that the program starts with older
 * libraries; what works beyond the errors depends on the kernel.
 */
#include "common.h"

#include <fcntl.h>
#include <poll.h>

/* Values of the newer header. */
enum { EVENT_INFO_RESOLVED = 16, EVENT_INFO_ERROR = 17, EVENT_USER = 18, EVENT_INTERNAL = 19 };
enum { FLAG_SA = 0x10, FLAG_DNS = 0x20 };

static int (*resolve)(struct rdma_cm_id *, const char *, const char *,
		      const struct rdma_addrinfo *);
static int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **);
static int (*write_event)(struct rdma_cm_id *, enum rdma_cm_event_type, int, uint64_t);

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static void begin(const char *name, bool sync)
{
	topic("%s", name);
	channel = rdma_create_event_channel();
	SETUP(!rdma_create_id(sync ? NULL : channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
}

static void end(void)
{
	id_forget(id);
	CALL(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void show_list(void)
{
	struct rdma_addrinfo *list = NULL;

	if (CALL(query(id, &list)))
		return;
	for (struct rdma_addrinfo *info = list; info; info = info->ai_next) {
		obs("flags %x family %d type %s ps %04x", info->ai_flags, info->ai_family,
		    qp_type_str(info->ai_qp_type), info->ai_port_space);
		obs("src %u %s dst %u %s", info->ai_src_len, addr_str(info->ai_src_addr),
		    info->ai_dst_len, addr_str(info->ai_dst_addr));
	}
	rdma_freeaddrinfo(list);
	CALL(query(id, &list));
}

static void resolve_on(const char *name, bool sync, const char *node, const char *service,
		       const struct rdma_addrinfo *hints)
{
	begin(name, sync);
	CALL(query(id, (struct rdma_addrinfo *[]){ NULL }));
	if (!CALL(resolve(id, node, service, hints))) {
		CALL(resolve(id, node, service, hints));
		if (!sync) {
			struct rdma_cm_event *event = get_event("id", channel);

			if (event)
				rdma_ack_cm_event(event);
		} else if (id->event) {
			obs("kept %s", rdma_event_str(id->event->event));
		}
		show_list();
	}
	end();
}

static void resolving(void)
{
	struct rdma_addrinfo hints;

	memset(&hints, 0, sizeof(hints));
	hints.ai_port_space = RDMA_PS_TCP;
	resolve_on("dns", false, local_node(AF_INET), "7471", &hints);
	resolve_on("dns without hints", false, local_node(AF_INET), "7471", NULL);
	resolve_on("dns sync", true, local_node(AF_INET), "7471", &hints);
	resolve_on("nothing", false, NULL, NULL, NULL);
	resolve_on("bad node", false, "256.1.1.1.1", NULL, &hints);
	hints.ai_flags = FLAG_DNS;
	resolve_on("explicit dns", false, local_node(AF_INET), "7471", &hints);
	hints.ai_flags = FLAG_SA | FLAG_DNS;
	resolve_on("sa and dns", false, NULL, "7471", &hints);
	hints.ai_flags = FLAG_SA;
	resolve_on("sa with node", false, local_node(AF_INET), "7471", &hints);
	resolve_on("sa without service", false, NULL, NULL, &hints);
	resolve_on("sa number", false, NULL, "7471", &hints);
	resolve_on("sa name", false, NULL, "some-service", &hints);
	resolve_on("sa long name", false, NULL,
		   "a-service-name-that-is-longer-than-the-sixty-three-bytes-it-may-have-here",
		   &hints);
}

static void getaddrinfo_flags(void)
{
	static const int flags[] = { FLAG_SA, FLAG_DNS, FLAG_SA | FLAG_DNS };

	topic("rdma_getaddrinfo");
	for (int i = 0; i < 3; i++)
		for (int node = 0; node < 2; node++) {
			struct rdma_addrinfo hints, *res = NULL;
			int ret;

			memset(&hints, 0, sizeof(hints));
			hints.ai_flags = flags[i];
			hints.ai_port_space = RDMA_PS_TCP;
			errno = 0;
			ret = rdma_getaddrinfo(node ? local_node(AF_INET) : NULL, "7471", &hints,
					       &res);
			obs("flags %x node %d -> %d %s", flags[i], node, ret,
			    errno_name(ret ? errno : 0));
			CHECK(!res == !!ret);
			if (!ret)
				rdma_freeaddrinfo(res);
		}
}

static void show_user(struct rdma_cm_event *event)
{
	uint64_t argument;

	memcpy(&argument, &event->param, sizeof(argument));
	obs("event %d status %d arg %llx id %s", event->event, event->status,
	    (unsigned long long)argument, id_str(event->id));
}

static void writing(void)
{
	begin("write", false);
	for (int type = -1; type <= 20; type++) {
		struct rdma_cm_event *event = NULL;
		int ret;

		errno = 0;
		ret = write_event(id, (enum rdma_cm_event_type)type, 5, 0x1122334455667788ull);
		obs("type %d -> %d %s", type, ret, errno_name(ret ? errno : 0));
		if (!ret && !rdma_get_cm_event(channel, &event)) {
			show_user(event);
			rdma_ack_cm_event(event);
		}
	}
	CALL(write_event(id, (enum rdma_cm_event_type)EVENT_USER, -7, ~0ull));
	if (channel_ready(channel)) {
		struct rdma_cm_event *event = NULL;

		CALL(rdma_get_cm_event(channel, &event));
		show_user(event);
		rdma_ack_cm_event(event);
	}
	end();
}

/* Written events are queued, and unread ones are dropped with the id. */
static void unread(void)
{
	begin("written and not read", false);
	CALL(write_event(id, (enum rdma_cm_event_type)EVENT_USER, 0, 1));
	CALL(write_event(id, (enum rdma_cm_event_type)EVENT_USER, 0, 2));
	id_forget(id);
	CALL(rdma_destroy_id(id));
	CHECK(!channel_ready(channel));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	resolve = (int (*)(struct rdma_cm_id *, const char *, const char *,
			   const struct rdma_addrinfo *))optional_symbol("rdma_resolve_addrinfo");
	query = (int (*)(struct rdma_cm_id *, struct rdma_addrinfo **))
		optional_symbol("rdma_query_addrinfo");
	write_event = (int (*)(struct rdma_cm_id *, enum rdma_cm_event_type, int, uint64_t))
		optional_symbol("rdma_write_cm_event");
	if (!resolve || !query || !write_event)
		skip_all("the library has no RDMACM_1.4");
	resolving();
	getaddrinfo_flags();
	writing();
	unread();
	return finish();
}
