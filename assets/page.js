// What a page cannot do from the server: write its own address, and copy text.
window.shardMyRepo = {
  address(query) {
    if (!query || query === window.location.search) return;
    window.history.replaceState(window.history.state, "", query);
    // A Space lies in a frame; the Hub takes the address over from it.
    if (window.parent !== window) {
      window.parent.postMessage({ queryString: query.slice(1) }, "https://huggingface.co");
    }
  },

  // Where a start was refused, the visitor is led to the reason; otherwise to the top, where the progress is.
  started(looks = 60) {
    const refusal = document.querySelector("#start-message [role=alert]");
    if (refusal) {
      refusal.tabIndex = -1;
      refusal.focus();
      refusal.scrollIntoView({ block: "center" });
    } else if (document.querySelector("#progress .job") || !looks) {
      window.scrollTo({ top: 0, behavior: "smooth" });
    } else {
      requestAnimationFrame(() => this.started(looks - 1));
    }
  },
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (button) {
    const text = button.closest(".copyable").querySelector("pre").innerText.trimEnd();
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }
});

// Gradio's own way loses all but the first part of the address on the way through the login.
document.addEventListener("click", (event) => {
  const button = event.target.closest("#sign-in");
  if (!button) return;
  event.stopPropagation();
  event.preventDefault();
  const door = button.textContent.trim().startsWith("Sign out") ? "logout" : "login/huggingface";
  const back = encodeURIComponent("/" + window.location.search);
  window.location.assign(`${door}?_target_url=${back}`);
}, true);
