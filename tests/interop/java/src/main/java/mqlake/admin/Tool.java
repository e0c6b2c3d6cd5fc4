package mqlake.admin;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin, command line and all. A command ends by waiting three seconds for its threads, so many run at once. */
final class Tool {
    private static final long BETWEEN_STARTS_MS = 50;
    private static final String OVERTAKEN = "java.util.ConcurrentModificationException";

    private Tool() {
    }

    /** mqadmin's own list: some commands keep their client from one run to the next, where it is closed. */
    private static final class Commands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }
    }

    /** Of each of the command lines what it prints, its failures too: it swallows and prints them. */
    static JSONObject run(JSONArray commands) throws InterruptedException {
        Commands.forget();
        List<ByteArrayOutputStream> printed = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        InheritableThreadLocal<ByteArrayOutputStream> own = new InheritableThreadLocal<>();
        PrintStream outBefore = System.out;
        PrintStream errBefore = System.err;
        PrintStream perThread = new PrintStream(new OutputStream() {
            @Override
            public void write(int b) {
                if (own.get() != null) {
                    own.get().write(b);
                }
            }
        }, true, StandardCharsets.UTF_8);
        System.setOut(perThread);
        System.setErr(perThread);
        try {
            for (int i = 0; i < commands.size(); i++) {
                String[] args = commands.getJSONArray(i).toArray(String[]::new);
                ByteArrayOutputStream output = new ByteArrayOutputStream();
                printed.add(output);
                Thread thread = new Thread(() -> {
                    own.set(output);
                    MQAdminStartup.main0(args, null);
                });
                threads.add(thread);
                thread.start();
                // Each names its client by the millisecond; two of one name would be one client.
                Thread.sleep(BETWEEN_STARTS_MS);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            for (int i = 0; i < commands.size(); i++) {
                // mqadmin keeps its commands in a static list, which each of the threads has filled and searched.
                if (printed.get(i).toString(StandardCharsets.UTF_8).startsWith(OVERTAKEN)) {
                    printed.get(i).reset();
                    own.set(printed.get(i));
                    MQAdminStartup.main0(commands.getJSONArray(i).toArray(String[]::new), null);
                    own.remove();
                }
            }
        } finally {
            System.setOut(outBefore);
            System.setErr(errBefore);
        }
        return JSONObject.of("printed", printed.stream().map(out -> out.toString(StandardCharsets.UTF_8)).toList());
    }
}
