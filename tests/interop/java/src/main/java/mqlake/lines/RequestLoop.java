package mqlake.lines;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * The line protocol of the test programs: one JSON request a line on stdin, one JSON answer a line on stdout,
 * {"error":…} when an exception was thrown. A request names what to "do"; "exit" ends the process.
 */
public final class RequestLoop {
    /** What a request asks for. */
    public interface Service {
        JSONObject serve(String what, JSONObject request) throws Throwable;
    }

    private RequestLoop() {
    }

    /** Serves requests until "exit" or the end of stdin, then ends the process. */
    public static void run(Service service) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Whatever a library prints must not get between the answers.
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            String what = request.getString("do");
            if ("exit".equals(what)) {
                break;
            }
            JSONObject answer;
            try {
                answer = service.serve(what, request);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = JSONObject.of("error", failure.toString());
            }
            answers.println(answer);
        }
        // Clients and servers leave threads behind that are not daemons.
        Runtime.getRuntime().halt(0);
    }
}
