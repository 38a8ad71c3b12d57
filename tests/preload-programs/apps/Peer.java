import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.ArrayList;

/** Peer server|client epoll|blocking ADDRESS PORT: an echo; the client compares, and prints the number of bytes. */
class Peer {
    static final int[] SIZES = {1, 100, 5000, 70_000, 200_000};
    static final int CONNECTIONS = 6;

    public static void main(String[] args) throws Exception {
        boolean server = args[0].equals("server"), epoll = args[1].equals("epoll");
        InetSocketAddress address = new InetSocketAddress(InetAddress.getByName(args[2]), Integer.parseInt(args[3]));
        if (server && epoll) serveBySelector(address);
        else if (server) serveByThreads(address);
        else System.out.println(epoll ? askBySelector(address) : askByThreads(address));
    }

    static byte[] block(int seed, int size) {
        byte[] data = new byte[size];
        new Random(seed * 31L + size).nextBytes(data);
        return data;
    }

    static void serveByThreads(InetSocketAddress address) throws IOException {
        try (ServerSocket listener = new ServerSocket()) {
            listener.bind(address);
            while (true) {
                Socket socket = listener.accept();
                new Thread(() -> {
                    try (socket) {
                        socket.getInputStream().transferTo(socket.getOutputStream());
                        socket.shutdownOutput();
                    } catch (IOException e) {
                        e.printStackTrace();
                    }
                }).start();
            }
        }
    }

    static long askByThreads(InetSocketAddress address) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(CONNECTIONS);
        ArrayList<Future<Long>> all = new ArrayList<>();
        for (int i = 0; i < CONNECTIONS; i++) {
            int seed = i;
            all.add(pool.submit((Callable<Long>) () -> askOnce(address, seed)));
        }
        long moved = 0;
        for (Future<Long> one : all) moved += one.get();
        pool.shutdown();
        return moved;
    }

    static long askOnce(InetSocketAddress address, int seed) throws IOException {
        long moved = 0;
        try (Socket socket = new Socket()) {
            socket.connect(address, 60_000);
            socket.setSoTimeout(60_000);
            socket.setTcpNoDelay(true);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int size : SIZES) {
                byte[] sent = block(seed, size), back = new byte[size];
                // The server reads while it writes, but has no room without end.
                Thread writer = new Thread(() -> {
                    try {
                        socket.getOutputStream().write(sent);
                    } catch (IOException e) {
                        e.printStackTrace();
                    }
                });
                writer.start();
                in.readFully(back);
                check(sent, back);
                moved += 2L * size;
            }
            socket.shutdownOutput();
            if (in.read() != -1) throw new IOException("data after the end");
        }
        return moved;
    }

    static void check(byte[] sent, byte[] back) throws IOException {
        if (!Arrays.equals(sent, back)) throw new IOException(sent.length + " bytes differ");
    }

    static void serveBySelector(InetSocketAddress address) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(address).configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel socket = listener.accept();
                    if (socket != null)
                        socket.configureBlocking(false).register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Reads when the buffer is empty, writes when it is not. */
    static void echo(SelectionKey key) throws IOException {
        SocketChannel socket = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable()) {
            buffer.clear();
            if (socket.read(buffer) < 0) {
                socket.close();
                return;
            }
            buffer.flip();
        }
        socket.write(buffer);
        key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    /** A connection of the client: what is sent of the present block, and what has come back. */
    static class Asked {
        final int seed;
        int turn;
        ByteBuffer out, in;

        Asked(int seed) {
            this.seed = seed;
            begin();
        }

        void begin() {
            out = ByteBuffer.wrap(block(seed, SIZES[turn]));
            in = ByteBuffer.allocate(SIZES[turn]);
        }
    }

    static long askBySelector(InetSocketAddress address) throws IOException {
        Selector selector = Selector.open();
        for (int i = 0; i < CONNECTIONS; i++) {
            SocketChannel socket = SocketChannel.open();
            socket.configureBlocking(false);
            SelectionKey key = socket.register(selector, SelectionKey.OP_CONNECT, new Asked(i));
            if (socket.connect(address)) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        }
        long moved = 0;
        int left = CONNECTIONS;
        while (left > 0) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel socket = (SocketChannel) key.channel();
                Asked asked = (Asked) key.attachment();
                if (key.isConnectable()) {
                    socket.finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) socket.write(asked.out);
                if (key.isReadable() && socket.read(asked.in) < 0) throw new IOException("an early end");
                key.interestOps(SelectionKey.OP_READ | (asked.out.hasRemaining() ? SelectionKey.OP_WRITE : 0));
                if (asked.in.hasRemaining()) continue;
                check(asked.out.array(), asked.in.array());
                moved += 2L * asked.in.capacity();
                if (++asked.turn < SIZES.length) {
                    asked.begin();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                } else {
                    socket.close();
                    left--;
                }
            }
            selector.selectedKeys().clear();
        }
        return moved;
    }
}
