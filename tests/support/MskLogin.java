import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.security.Provider;
import java.security.Security;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import javax.security.sasl.SaslException;
import javax.security.sasl.SaslServer;
import javax.security.sasl.SaslServerFactory;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * How a broker takes logins with AWS IAM: OAUTHBEARER, whose tokens this handler validates, and AWS_MSK_IAM, whose
 * mechanism it registers. What a client has sent is verified by the server whose address the property msk.verifier has.
 */
public class MskLogin implements AuthenticateCallbackHandler {
    static {
        Security.addProvider(new MskProvider());
    }

    public void configure(Map<String, ?> configs, String mechanism, List entries) {
    }

    public void close() {
    }

    public void handle(Callback[] callbacks) throws IOException {
        for (int i = 0; i < callbacks.length; i++) {
            if (callbacks[i] instanceof OAuthBearerValidatorCallback) {
                OAuthBearerValidatorCallback callback = (OAuthBearerValidatorCallback) callbacks[i];
                String token = callback.tokenValue();
                String[] verified = verified("token", token.getBytes(StandardCharsets.UTF_8));
                if (verified == null) {
                    callback.error("invalid_token", null, null);
                } else {
                    callback.token(new MskToken(token, verified[0], Long.parseLong(verified[1])));
                }
            }
        }
    }

    /** Return the principal and when the login ends, in milliseconds since 1970; null if it is refused. */
    static String[] verified(String kind, byte[] sent) throws IOException {
        URL url = new URL(System.getProperty("msk.verifier") + "/" + kind);
        HttpURLConnection connection = (HttpURLConnection) url.openConnection();
        connection.setRequestMethod("POST");
        connection.setDoOutput(true);
        OutputStream out = connection.getOutputStream();
        out.write(sent);
        out.close();
        if (connection.getResponseCode() != 200) {
            return null;
        }
        InputStream in = connection.getInputStream();
        return new String(in.readAllBytes(), StandardCharsets.UTF_8).split(" ");
    }

    public static class MskToken implements OAuthBearerToken {
        private final String value;
        private final String principal;
        private final long endsAt;

        MskToken(String value, String principal, long endsAt) {
            this.value = value;
            this.principal = principal;
            this.endsAt = endsAt;
        }

        public String value() {
            return value;
        }

        public Set scope() {
            return Collections.emptySet();
        }

        public long lifetimeMs() {
            return endsAt;
        }

        public String principalName() {
            return principal;
        }

        public Long startTimeMs() {
            return null;
        }
    }

    public static class MskProvider extends Provider {
        public MskProvider() {
            super("MskLogin", "1", "AWS_MSK_IAM for a broker of the tests");
            put("SaslServerFactory.AWS_MSK_IAM", MskFactory.class.getName());
        }
    }

    public static class MskFactory implements SaslServerFactory {
        public SaslServer createSaslServer(
                String mechanism, String protocol, String server, Map properties, CallbackHandler handler) {
            return new MskServer();
        }

        public String[] getMechanismNames(Map properties) {
            return new String[] {"AWS_MSK_IAM"};
        }
    }

    public static class MskServer implements SaslServer {
        private String[] verified;

        public String getMechanismName() {
            return "AWS_MSK_IAM";
        }

        public byte[] evaluateResponse(byte[] response) throws SaslException {
            try {
                verified = MskLogin.verified("payload", response);
            } catch (IOException error) {
                throw new SaslException("the verifier does not answer", error);
            }
            if (verified == null) {
                throw new SaslException("Access denied");
            }
            return "{\"version\": \"2020_10_22\", \"request-id\": \"1\"}".getBytes(StandardCharsets.UTF_8);
        }

        public boolean isComplete() {
            return verified != null;
        }

        public String getAuthorizationID() {
            return verified[0];
        }

        public Object getNegotiatedProperty(String name) {
            return name.equals("CREDENTIAL.LIFETIME.MS") ? Long.valueOf(verified[1]) : null;
        }

        public byte[] unwrap(byte[] bytes, int offset, int length) {
            throw new IllegalStateException();
        }

        public byte[] wrap(byte[] bytes, int offset, int length) {
            throw new IllegalStateException();
        }

        public void dispose() {
        }
    }
}
