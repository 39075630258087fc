// The form of a claim: several targets at once, and what it would get while one types.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type ClientName, get, type Session, write } from "../api";
import { Action, BeginField, ClientField, Field, said, When } from "../parts";

interface Line {
  name: string;
  class: string;
  count: number;
  labels: string;
}

interface Preview {
  verdict: "Satisfied" | "Unsatisfiable" | "Unknown";
  possible: boolean;
  starts?: string;
  members: { request: string; device: string }[];
  reasons: string[];
  relaxation: string;
  blockers: string[];
}

interface WantedClaim {
  namespace: string;
  client: string;
  name: string;
  requests: Line[];
  same: string;
  duration: string;
  begin: string;
}

const TYPING_MS = 300;
const LINES_MAX = 32;

/** What a claim would get now; null while that is not known. */
function usePreview(wanted: WantedClaim | null): { found: Preview | null; problem: string } {
  const [state, setState] = useState<{ found: Preview | null; problem: string }>({
    found: null,
    problem: "",
  });
  const key = JSON.stringify(wanted);
  useEffect(() => {
    if (!wanted) {
      setState({ found: null, problem: "" });
      return;
    }
    let current = true;
    const timer = setTimeout(async () => {
      try {
        const found = await write<Preview>("POST", "claims/preview", wanted);
        if (current) setState({ found, problem: "" });
      } catch (error) {
        if (current) setState({ found: null, problem: said(error) });
      }
    }, TYPING_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key]);
  return state;
}

export function NewClaim(props: { session: Session; onClose: () => void }): JSX.Element {
  const { session } = props;
  const [classes, setClasses] = useState<string[] | null>(null);
  const [chosen, setChosen] = useState(0);
  const [name, setName] = useState("");
  const [lines, setLines] = useState<Line[]>([{ name: "dut", class: "", count: 1, labels: "" }]);
  const [same, setSame] = useState("");
  const [length, setLength] = useState("1h");
  const [begin, setBegin] = useState("");
  useEffect(() => {
    get<{ classes: string[] }>("classes").then(
      (found) => setClasses(found.classes),
      () => setClasses([]),
    );
  }, []);
  const client: ClientName | undefined = session.clients[chosen];
  const wanted: WantedClaim | null =
    client && lines.every((line) => line.name && line.class && line.count > 0)
      ? {
          namespace: client.ns,
          client: client.name,
          name,
          requests: lines,
          same,
          duration: length,
          begin: begin ? new Date(begin).toISOString() : "",
        }
      : null;
  const { found, problem } = usePreview(wanted);
  const change = (index: number, changed: Partial<Line>): void =>
    setLines(lines.map((line, i) => (i === index ? { ...line, ...changed } : line)));
  return (
    <section class="card" aria-labelledby="new-claim">
      <h2 id="new-claim">New claim</h2>
      <p class="hint">Several targets at once: the claim gets all of them, or waits.</p>
      <datalist id="classes">
        {classes?.map((each) => (
          <option value={each} key={each} />
        ))}
      </datalist>
      {classes?.length === 0 && (
        <p class="problem">
          There is no DeviceClass yet. An administrator applies one, such as those of{" "}
          <code>examples/claim.yaml</code>.
        </p>
      )}
      {lines.map((line, index) => (
        <fieldset class="form request" key={index}>
          <legend>Request {index + 1}</legend>
          <Text label="Name" value={line.name} onInput={(value) => change(index, { name: value })} />
          <Text
            label="Class"
            list="classes"
            value={line.class}
            onInput={(value) => change(index, { class: value })}
          />
          <Field label="Count">
            {(id) => (
              <input
                id={id}
                type="number"
                min="1"
                value={String(line.count)}
                onInput={(event) => change(index, { count: Number(event.currentTarget.value) })}
              />
            )}
          </Field>
          <Text
            label="Labels"
            hint="Only those with, for example: arch=arm64"
            value={line.labels}
            onInput={(value) => change(index, { labels: value })}
          />
          {lines.length > 1 && (
            <button onClick={() => setLines(lines.filter((_, i) => i !== index))}>
              Remove<span class="unseen"> request {index + 1}</span>
            </button>
          )}
        </fieldset>
      ))}
      <p>
        <button
          disabled={lines.length >= LINES_MAX}
          onClick={() =>
            setLines([...lines, { name: `target-${lines.length + 1}`, class: "", count: 1, labels: "" }])
          }
        >
          Add a request
        </button>
      </p>
      <div class="form">
        <Text label="Name of the claim" hint="Chosen if empty" value={name} onInput={setName} />
        <Text
          label="All with the same"
          hint="An attribute, for example: site"
          value={same}
          onInput={setSame}
        />
        <Field label="For">
          {(id) => (
            <select
              id={id}
              value={length}
              onChange={(event) => setLength(event.currentTarget.value)}
            >
              <option value="30m">30 minutes</option>
              <option value="1h">1 hour</option>
              <option value="4h">4 hours</option>
              <option value="8h">8 hours</option>
              <option value="24h">1 day</option>
            </select>
          )}
        </Field>
        <BeginField value={begin} onInput={setBegin} />
        <ClientField clients={session.clients} value={chosen} onChange={setChosen} />
      </div>
      <div class="matches" role="status">
        {problem && <span class="problem">{problem}</span>}
        {found && <Said found={found} begins={begin !== ""} />}
      </div>
      <div class="card-actions">
        <Action
          class="primary"
          disabled={!wanted}
          run={async () => {
            await write("POST", "claims", wanted);
            props.onClose();
          }}
        >
          Claim
        </Action>
        <button onClick={props.onClose}>Cancel</button>
      </div>
    </section>
  );
}

function Text(props: {
  label: string;
  hint?: string;
  list?: string;
  value: string;
  onInput: (value: string) => void;
}): JSX.Element {
  return (
    <Field label={props.label} {...(props.hint ? { hint: props.hint } : {})}>
      {(id) => (
        <input
          id={id}
          list={props.list}
          value={props.value}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => props.onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

/** What the claim would get now; of a later begin, nothing more is known. */
function Said({ found, begins }: { found: Preview; begins: boolean }): JSX.Element {
  if (found.verdict === "Satisfied")
    return (
      <>
        <strong>{begins ? "As things are now" : "Served at once"}:</strong>{" "}
        {found.members.map((member) => (
          <span key={member.request + member.device} class="match">
            {member.request} gets {member.device}
          </span>
        ))}
      </>
    );
  return (
    <>
      <strong>{found.possible ? "It would wait" : "Nothing in this lab can serve it"}:</strong>{" "}
      {found.reasons.join("; ") || "no reason is known"}
      {found.starts && (
        <>
          {" "}
          · could begin <When time={found.starts} />
        </>
      )}
      {found.relaxation && <> · served at once with this change: {found.relaxation}</>}
      {found.blockers.length > 0 && <div class="quiet">{found.blockers.slice(0, 4).join("; ")}</div>}
    </>
  );
}
