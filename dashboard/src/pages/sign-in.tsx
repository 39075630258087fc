// Signing in: with the link that `bullpen up` prints, with a token, or at an outside issuer.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { currentSession, type Session, signInWithToken, type Visitor } from "../api";
import { Field, said } from "../parts";

export function SignIn(props: { problem: string; onSignedIn: (session: Session) => void }): JSX.Element {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(props.problem);
  const [busy, setBusy] = useState(false);
  const [visitor, setVisitor] = useState<Visitor | null>(null);
  useEffect(() => {
    currentSession()
      .then((found) => setVisitor(found.user === null ? found : null))
      .catch((error: unknown) => setProblem(said(error)));
  }, []);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      props.onSignedIn(await signInWithToken(token.trim()));
    } catch (error) {
      setProblem(said(error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in" id="content">
      <div class="card">
        <h1>
          <img src="/dashboard/icon.svg" alt="" width="32" height="32" /> Bullpen
        </h1>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        {visitor?.issuers.map((issuer) => (
          <p key={issuer.path}>
            <a class="button primary" href={issuer.path}>
              Sign in with {issuer.name}
            </a>
          </p>
        ))}
        {visitor?.cluster ? (
          <p>
            Paste a token: of a <code>jmp</code> client, to lease targets, or of the cluster, such as{" "}
            <code>kubectl create token ACCOUNT</code> prints, for what its roles allow.
          </p>
        ) : (
          <p>
            Open the link that <code>bullpen dashboard</code> prints on the machine of the service, or
            paste a token.
          </p>
        )}
        <form onSubmit={(event) => void submit(event)}>
          <Field label="Token" hint="Of a jmp client config (token:) or of a kubeconfig (token:)">
            {(id) => (
              <input
                id={id}
                type="password"
                autocomplete="off"
                value={token}
                onInput={(event) => setToken(event.currentTarget.value)}
              />
            )}
          </Field>
          <button class="primary" disabled={busy || !token.trim()}>
            Sign in
          </button>
        </form>
      </div>
    </main>
  );
}
