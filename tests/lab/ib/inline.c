// SPDX-License-Identifier: GPL-2.0
/*
 * Inline sends, which rdmavt does not have: the data is copied when the request is posted, and
 * kept beside the send queue. rdmavt's functions are wrapped after it registered the device.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "vib.h"

static struct ib_device_ops rvt; /* rdmavt's functions, alike for all devices */

static int create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct rvt_qp *qp = container_of(ibqp, struct rvt_qp, ibqp);
	u32 wanted = attr->cap.max_inline_data;
	struct vib_qp *priv;
	int status;

	if (wanted > VIB_MAX_INLINE)
		return -EINVAL;
	status = rvt.create_qp(ibqp, attr, udata);
	if (status || !wanted)
		return status;
	priv = vib_qp(qp);
	priv->inline_data = kvcalloc(qp->s_size, VIB_MAX_INLINE, GFP_KERNEL);
	/* Without memory the QP takes no inline data, as the attributes then say. */
	priv->max_inline = priv->inline_data ? wanted : 0;
	attr->cap.max_inline_data = priv->max_inline;
	return 0;
}

static int query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init_attr)
{
	struct rvt_qp *qp = container_of(ibqp, struct rvt_qp, ibqp);
	int status = rvt.query_qp(ibqp, attr, mask, init_attr);

	attr->cap.max_inline_data = vib_qp(qp)->max_inline;
	init_attr->cap.max_inline_data = vib_qp(qp)->max_inline;
	return status;
}

/* Copies the data of an inline request. Returns its length, or an error. */
static int gather(struct vib_qp *priv, const struct ib_send_wr *wr, u8 *buffer)
{
	u32 length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (sge->length > priv->max_inline - length)
			return -EINVAL;
		if (copy_from_user(buffer + length, u64_to_user_ptr(sge->addr), sge->length))
			return -EFAULT;
		length += sge->length;
	}
	return length;
}

/* The request is in memory of the caller, which does not look at it again. */
static int post_inline(struct rvt_qp *qp, struct ib_send_wr *wr)
{
	struct vib_qp *priv = vib_qp(qp);
	const struct ib_send_wr *bad;
	u8 buffer[VIB_MAX_INLINE];
	int status;

	mutex_lock(&priv->inline_lock);
	status = gather(priv, wr, buffer);
	if (status >= 0) {
		priv->staged = buffer;
		priv->staged_length = status;
		wr->num_sge = 0;
		status = rvt.post_send(&qp->ibqp, wr, &bad);
		priv->staged = NULL;
	}
	mutex_unlock(&priv->inline_lock);
	return status;
}

static int post_one(struct rvt_qp *qp, struct ib_send_wr *wr)
{
	const struct ib_send_wr *bad;

	if (wr->send_flags & IB_SEND_INLINE)
		return post_inline(qp, wr);
	return rvt.post_send(&qp->ibqp, wr, &bad);
}

static bool has_inline(const struct ib_send_wr *wr)
{
	for (; wr; wr = wr->next)
		if (wr->send_flags & IB_SEND_INLINE)
			return true;
	return false;
}

/* Only programs send inline data; their requests come one list a system call. */
static int post_user_send(struct ib_qp *ibqp, const struct ib_send_wr *first, const struct ib_send_wr **bad)
{
	struct rvt_qp *qp = container_of(ibqp, struct rvt_qp, ibqp);
	struct ib_send_wr *wr, *next;
	int status;

	if (!has_inline(first))
		return rvt.post_send(ibqp, first, bad);
	for (wr = (struct ib_send_wr *)first; wr; wr = next) {
		next = (struct ib_send_wr *)wr->next;
		wr->next = NULL;
		status = post_one(qp, wr);
		wr->next = next;
		if (status) {
			*bad = wr;
			return status;
		}
	}
	return 0;
}

static int post_send(struct ib_qp *ibqp, const struct ib_send_wr *first, const struct ib_send_wr **bad)
{
	int status;

	if (!ibqp->uobject) /* of the kernel, which may hold locks */
		return rvt.post_send(ibqp, first, bad);
	status = post_user_send(ibqp, first, bad);
	vib_move_now();
	return status;
}

/* Called by rdmavt in the middle of post_send(): the entry is the next of the send queue. */
void vib_take_inline(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct vib_qp *priv = vib_qp(qp);

	if (!priv->staged)
		return;
	memcpy(priv->inline_data[qp->s_head], priv->staged, priv->staged_length);
	wqe->length = priv->staged_length;
	wqe->priv = priv->inline_data[qp->s_head];
}

void vib_allow_inline(struct vib_hca *hca)
{
	struct ib_device_ops *ops = &hca->rdi.ibdev.ops;

	rvt = *ops;
	ops->create_qp = create_qp;
	ops->query_qp = query_qp;
	ops->post_send = post_send;
}
