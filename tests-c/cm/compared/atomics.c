/* Atomic operations over a connection of the connection manager: results, and what the peer refuses. */
#include "common.h"

static struct pair pair;
static uint64_t result, words[2];

static const char *name_of(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? "fetch and add" : "compare and swap";
}

/* Adds `first`; or writes `second` where `first` is. `offset` from the first word, at `access`. */
static void operate(enum ibv_wr_opcode opcode, uint64_t first, uint64_t second, unsigned int offset, int access)
{
	struct ibv_mr *own, *peers;
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct ibv_wc wc;
	int got;

	topic("%s %llu %llu at %u, access %#x", name_of(opcode), (unsigned long long)first, (unsigned long long)second, offset,
	      (unsigned int)access);
	words[0] = 40;
	words[1] = result = 0;
	if (!pair_connect(&pair, RDMA_PS_TCP, AF_INET))
		return;
	own = ibv_reg_mr(pair.client->pd, &result, sizeof(result), IBV_ACCESS_LOCAL_WRITE);
	peers = ibv_reg_mr(pair.server->pd, words, sizeof(words), access);
	if (!SETUP(own && peers))
		return;
	sge = (struct ibv_sge){ (uintptr_t)&result, sizeof(result), own->lkey };
	wr = (struct ibv_send_wr){ .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
				   .wr.atomic = { .remote_addr = (uintptr_t)words + offset, .compare_add = first,
						  .swap = second, .rkey = peers->rkey } };
	if (!CALL(ibv_post_send(pair.client->qp, &wr, &bad))) {
		memset(&wc, 0, sizeof(wc));
		errno = 0;
		got = rdma_get_send_comp(pair.client, &wc);
		show_wc("client", got, &wc);
	}
	obs("was %llu, is %llu %llu", (unsigned long long)result, (unsigned long long)words[0], (unsigned long long)words[1]);
	CALL(rdma_dereg_mr(own));
	CALL(rdma_dereg_mr(peers));
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	start(argc, argv);
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 0, all);
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 0, 0, all);
	operate(IBV_WR_ATOMIC_CMP_AND_SWP, 40, 1000, 0, all);
	operate(IBV_WR_ATOMIC_CMP_AND_SWP, 41, 1000, 0, all);
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 4, all);
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 16, all);
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 0, all & ~IBV_ACCESS_REMOTE_ATOMIC);
	return finish();
}
