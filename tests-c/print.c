/* Converts values to text that is the same in each run. */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <stdarg.h>

/* Lines of a worker thread are kept here until it is joined. */
static __thread char *kept;
static __thread size_t kept_len;
static __thread bool keeping;
static __thread char current_topic[64];

struct worker {
	pthread_t thread;
	volatile pid_t tid;
	void *(*body)(void *);
	void *argument;
	char topic[64];
	char *lines;
};

/* Text of one call stays valid for the next fifteen of the same thread. */
static char *scratch(void)
{
	static __thread char texts[16][1024];
	static __thread unsigned turn;

	return texts[turn++ % 16];
}

static void emit(const char *line)
{
	size_t len = strlen(line);

	if (!keeping) {
		fputs(line, stdout);
		return;
	}
	char *grown = realloc(kept, kept_len + len + 1);
	if (!grown)
		abort();
	kept = grown;
	memcpy(kept + kept_len, line, len + 1);
	kept_len += len;
}

void topic(const char *fmt, ...)
{
	va_list arguments;

	va_start(arguments, fmt);
	vsnprintf(current_topic, sizeof(current_topic), fmt, arguments);
	va_end(arguments);
}

void obs(const char *fmt, ...)
{
	char text[2048], line[2300];
	va_list arguments;

	va_start(arguments, fmt);
	vsnprintf(text, sizeof(text), fmt, arguments);
	va_end(arguments);
	snprintf(line, sizeof(line), "[%s] %s\n", current_topic, text);
	emit(line);
}

/* ---- numbers with names ------------------------------------------------- */

const char *errno_name(int value)
{
	const char *name = strerrorname_np(value);
	char *text;

	if (value == 0)
		return "0";
	if (name)
		return name;
	text = scratch();
	snprintf(text, 1024, "errno(%d)", value);
	return text;
}

const char *eai_name(int value)
{
	static const struct { int value; const char *name; } names[] = {
		{ 0, "0" }, { EAI_BADFLAGS, "EAI_BADFLAGS" },
		{ EAI_NONAME, "EAI_NONAME" }, { EAI_AGAIN, "EAI_AGAIN" },
		{ EAI_FAIL, "EAI_FAIL" }, { EAI_FAMILY, "EAI_FAMILY" },
		{ EAI_SOCKTYPE, "EAI_SOCKTYPE" }, { EAI_SERVICE, "EAI_SERVICE" },
		{ EAI_MEMORY, "EAI_MEMORY" }, { EAI_SYSTEM, "EAI_SYSTEM" },
		{ EAI_OVERFLOW, "EAI_OVERFLOW" }, { EAI_NODATA, "EAI_NODATA" },
		{ EAI_ADDRFAMILY, "EAI_ADDRFAMILY" },
	};
	char *text;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].value == value)
			return names[i].name;
	text = scratch();
	snprintf(text, 1024, "%d", value);
	return text;
}

const char *qp_type_str(int type)
{
	switch (type) {
	case IBV_QPT_RC: return "RC";
	case IBV_QPT_UC: return "UC";
	case IBV_QPT_UD: return "UD";
	case IBV_QPT_XRC_SEND: return "XRC_SEND";
	case IBV_QPT_XRC_RECV: return "XRC_RECV";
	case 0: return "0";
	default: return "other";
	}
}

/* ---- addresses ------------------------------------------------------------ */

/* Linux picks local ports from 32768 to 60999 unless told otherwise. */
static const char *port_str(uint16_t port)
{
	char *text = scratch();

	if (port >= 32768 && port <= 60999)
		return "EPH";
	snprintf(text, 1024, "%u", port);
	return text;
}

static const char *ip6_str(const struct in6_addr *address)
{
	char *text = scratch();

	/* Link-local addresses follow the random MAC of the lab's interface. */
	if (IN6_IS_ADDR_LINKLOCAL(address))
		return "LINKLOCAL";
	inet_ntop(AF_INET6, address, text, 1024);
	return text;
}

static const char *ib_str(const struct sockaddr_ib *ib)
{
	char *text = scratch();
	uint64_t sid = be64toh(ib->sib_sid);

	snprintf(text, 1024, "ib(%s pkey %04x flow %x sid %llx:%s mask %llx scope %llx)",
		 ip6_str((const struct in6_addr *)&ib->sib_addr), ntohs(ib->sib_pkey),
		 ntohl(ib->sib_flowinfo), (unsigned long long)(sid >> 16),
		 port_str((uint16_t)sid), (unsigned long long)be64toh(ib->sib_sid_mask),
		 (unsigned long long)ib->sib_scope_id);
	return text;
}

const char *addr_str(const struct sockaddr *sa)
{
	char *text = scratch();
	const union address *address = (const void *)sa;

	if (!sa)
		return "NULL";
	if (sa->sa_family == AF_INET) {
		inet_ntop(AF_INET, &address->in.sin_addr, text, 64);
		size_t used = strlen(text);
		snprintf(text + used, 960, ":%s", port_str(ntohs(address->in.sin_port)));
	} else if (sa->sa_family == AF_INET6) {
		size_t used = (size_t)snprintf(text, 1024, "[%s]:%s%s", ip6_str(&address->in6.sin6_addr),
					       port_str(ntohs(address->in6.sin6_port)),
					       address->in6.sin6_scope_id ? " scope" : "");
		if (address->in6.sin6_flowinfo)
			snprintf(text + used, 1024 - used, " flow %x", ntohl(address->in6.sin6_flowinfo));
	} else if (sa->sa_family == AF_IB) {
		return ib_str(&address->ib);
	} else {
		snprintf(text, 1024, "family %d", sa->sa_family);
	}
	return text;
}

const char *gid_str(const union ibv_gid *gid)
{
	return ip6_str((const struct in6_addr *)gid);
}

const char *bytes_str(const void *data, size_t len)
{
	const unsigned char *bytes = data;
	char *text = scratch();
	size_t used = 0, i = 0;

	text[0] = 0;
	while (i < len && used < 960) {
		size_t same = 1;
		while (i + same < len && bytes[i + same] == bytes[i])
			same++;
		used += (size_t)snprintf(text + used, 1024 - used, "%s%02xx%zu",
					 i ? " " : "", bytes[i], same);
		i += same;
	}
	if (i < len)
		snprintf(text + used, 1024 - used, " ...");
	return text;
}

/* ---- ids -------------------------------------------------------------------- */

#define MAX_NAMED 512
static struct { const struct rdma_cm_id *id; char name[24]; } named[MAX_NAMED];
static pthread_mutex_t named_lock = PTHREAD_MUTEX_INITIALIZER;

void id_name(const struct rdma_cm_id *id, const char *name)
{
	id_forget(id);
	pthread_mutex_lock(&named_lock);
	for (int i = 0; i < MAX_NAMED; i++) {
		if (named[i].id)
			continue;
		named[i].id = id;
		snprintf(named[i].name, sizeof(named[i].name), "%s", name);
		break;
	}
	pthread_mutex_unlock(&named_lock);
}

void id_forget(const struct rdma_cm_id *id)
{
	pthread_mutex_lock(&named_lock);
	for (int i = 0; i < MAX_NAMED; i++)
		if (named[i].id == id)
			named[i].id = NULL;
	pthread_mutex_unlock(&named_lock);
}

const char *id_str(const struct rdma_cm_id *id)
{
	const char *found = "new";

	if (!id)
		return "NULL";
	pthread_mutex_lock(&named_lock);
	for (int i = 0; i < MAX_NAMED; i++)
		if (named[i].id == id)
			found = named[i].name;
	pthread_mutex_unlock(&named_lock);
	return found;
}

const char *qpn_str(uint32_t qpn)
{
	const char *found = "other";
	char *text = scratch();

	if (qpn == 0)
		return "0";
	if (qpn == 0xffffff)
		return "multicast";
	pthread_mutex_lock(&named_lock);
	for (int i = 0; i < MAX_NAMED; i++)
		if (named[i].id && named[i].id->qp && named[i].id->qp->qp_num == qpn)
			found = named[i].name;
	pthread_mutex_unlock(&named_lock);
	snprintf(text, 1024, "%s.qp", found);
	return text;
}

static const char *given(const void *pointer)
{
	return pointer ? "set" : "NULL";
}

/*
 * A flow label. For RoCE the kernel's connection manager computes it from the ports of the client,
 * unless the address states one. In the path of a request the bits above it are those beside it in
 * the record.
 */
static const char *flow_str(const struct rdma_cm_id *id, uint32_t flow)
{
	enum { LABEL = 0xfffff };
	uint32_t source = ntohs(rdma_get_src_port((struct rdma_cm_id *)id));
	uint32_t destination = ntohs(rdma_get_dst_port((struct rdma_cm_id *)id));
	uint32_t label = flow & LABEL;
	char *text = scratch();

	if (label && label == ((source * 31 + destination) & LABEL))
		snprintf(text, 1024, "%x+source,destination", flow & ~(uint32_t)LABEL);
	else if (label && label == ((destination * 31 + source) & LABEL))
		snprintf(text, 1024, "%x+destination,source", flow & ~(uint32_t)LABEL);
	else
		snprintf(text, 1024, "%x", flow);
	return text;
}

void show_id(const struct rdma_cm_id *id)
{
	const struct rdma_ib_addr *ib = &id->route.addr.addr.ibaddr;
	const char *name = id_str(id);

	obs("%s: verbs %s channel %s context %s event %s ps %04x port %u type %s",
	    name, given(id->verbs), given(id->channel), given(id->context),
	    given(id->event), id->ps, id->port_num, qp_type_str(id->qp_type));
	obs("%s: qp %s pd %s srq %s send_cq %s/%s recv_cq %s/%s", name, given(id->qp),
	    given(id->pd), given(id->srq), given(id->send_cq),
	    given(id->send_cq_channel), given(id->recv_cq), given(id->recv_cq_channel));
	obs("%s: src %s dst %s paths %d rec %s", name,
	    addr_str(&id->route.addr.src_addr), addr_str(&id->route.addr.dst_addr),
	    id->route.num_paths, given(id->route.path_rec));
	obs("%s: sgid %s dgid %s pkey %04x", name, gid_str(&ib->sgid), gid_str(&ib->dgid), ntohs(ib->pkey));
	for (int i = 0; i < id->route.num_paths; i++)
		obs("%s: path %d flow %s", name, i, flow_str(id, ntohl(id->route.path_rec[i].flow_label)));
}

/* ---- events ------------------------------------------------------------------- */

static bool is_ud(const struct rdma_cm_id *id)
{
	return id && (id->ps == RDMA_PS_UDP || id->ps == RDMA_PS_IPOIB);
}

static void show_conn(const char *who, const struct rdma_conn_param *conn)
{
	obs("%s:   resources %u depth %u flow %u retry %u rnr %u srq %u qpn %s data %u [%s]",
	    who, conn->responder_resources, conn->initiator_depth, conn->flow_control,
	    conn->retry_count, conn->rnr_retry_count, conn->srq, qpn_str(conn->qp_num),
	    conn->private_data_len,
	    conn->private_data ? bytes_str(conn->private_data, conn->private_data_len)
			       : "NULL");
}

static void show_ud(const char *who, const struct rdma_cm_event *event)
{
	const struct rdma_ud_param *ud = &event->param.ud;
	const struct ibv_ah_attr *ah = &ud->ah_attr;
	/* The context of a join is in private_data: a value, not the address of data. */
	bool data = event->event != RDMA_CM_EVENT_MULTICAST_JOIN &&
		    event->event != RDMA_CM_EVENT_MULTICAST_ERROR && ud->private_data;

	obs("%s:   qpn %s qkey %x data %u [%s]", who, qpn_str(ud->qp_num), ud->qkey,
	    ud->private_data_len,
	    data ? bytes_str(ud->private_data, ud->private_data_len) : "NULL");
	obs("%s:   ah global %u dgid %s flow %s sgid_index %u hops %u class %u dlid %u sl %u "
	    "path_bits %u rate %u port %u", who, ah->is_global,
	    ah->is_global ? gid_str(&ah->grh.dgid) : "-", flow_str(event->id, ah->grh.flow_label),
	    ah->grh.sgid_index, ah->grh.hop_limit, ah->grh.traffic_class, ah->dlid,
	    ah->sl, ah->src_path_bits, ah->static_rate, ah->port_num);
}

void show_event(const char *who, const struct rdma_cm_event *event)
{
	const char *status = errno_name(event->status < 0 ? -event->status : 0);

	if (event->status > 0)
		obs("%s: %s status +%d id %s listen %s", who, rdma_event_str(event->event),
		    event->status, id_str(event->id), id_str(event->listen_id));
	else
		obs("%s: %s status %s%s id %s listen %s", who, rdma_event_str(event->event),
		    event->status ? "-" : "", status, id_str(event->id),
		    id_str(event->listen_id));
	if (event->event < RDMA_CM_EVENT_CONNECT_REQUEST)
		return;
	if (is_ud(event->id))
		show_ud(who, event);
	else
		show_conn(who, &event->param.conn);
}

void show_qp(const char *who, const struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	memset(&attr, 0, sizeof(attr));
	if (on_siw() || !id || !id->qp)
		return;
	if (ibv_query_qp(id->qp, &attr, IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_TIMEOUT | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER, &init)) {
		obs("%s: ibv_query_qp failed", who);
		return;
	}
	obs("%s: qp state %d rd_atomic %u dest_rd_atomic %u retry %u rnr %u timeout %u mtu %d "
	    "min_rnr %u access %x port %u", who, attr.qp_state, attr.max_rd_atomic,
	    attr.max_dest_rd_atomic, attr.retry_cnt, attr.rnr_retry, attr.timeout,
	    attr.path_mtu, attr.min_rnr_timer, attr.qp_access_flags, attr.port_num);
}

void show_wc(const char *who, int ret, const struct ibv_wc *wc)
{
	if (ret != 1)
		obs("%s: completions %d", who, ret);
	else if (wc->status)
		obs("%s: completion %s", who, ibv_wc_status_str(wc->status));
	else
		obs("%s: completion success opcode %d bytes %u flags %x", who, wc->opcode,
		    wc->opcode & IBV_WC_RECV ? wc->byte_len : 0, wc->wc_flags);
}

/* ---- results -------------------------------------------------------------------- */

int obs_call(const char *text, int ret, int error)
{
	if (ret < 0)
		obs("%s -> %d %s", text, ret, errno_name(error));
	else
		obs("%s -> %d", text, ret);
	return ret;
}

bool obs_pointer(const char *text, const void *pointer, int error)
{
	if (pointer)
		obs("%s -> set", text);
	else
		obs("%s -> NULL %s", text, errno_name(error));
	return pointer != NULL;
}

bool obs_bool(const char *text, bool value)
{
	obs("%s: %s", text, value ? "yes" : "no");
	return value;
}

bool setup_ok(const char *text, bool good, int error)
{
	if (!good)
		obs("setup failed: %s: %s", text, errno_name(error));
	return good;
}

/* ---- worker threads ---------------------------------------------------------------- */

static void *worker_body(void *argument)
{
	struct worker *worker = argument;
	void *result;

	worker->tid = gettid();
	keeping = true;
	snprintf(current_topic, sizeof(current_topic), "%s", worker->topic);
	result = worker->body(worker->argument);
	worker->lines = kept;
	return result;
}

struct worker *worker_start(void *(*body)(void *), void *argument)
{
	struct worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		abort();
	worker->body = body;
	worker->argument = argument;
	snprintf(worker->topic, sizeof(worker->topic), "%s", current_topic);
	if (pthread_create(&worker->thread, NULL, worker_body, worker))
		abort();
	return worker;
}

void worker_await_sleep(const struct worker *worker)
{
	await_sleep(&worker->tid);
}

void *worker_join(struct worker *worker)
{
	void *result = NULL;

	pthread_join(worker->thread, &result);
	if (worker->lines)
		emit(worker->lines);
	free(worker->lines);
	free(worker);
	return result;
}
